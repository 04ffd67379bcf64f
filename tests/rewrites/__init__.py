"""Every pass that rewrites partitioned programs, on drawn programs that it takes: NaN and infinities stay in place."""
