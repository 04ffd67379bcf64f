"""Side by side: what meshbridge, XLA with Shardy and XLA with GSPMD make of the same programs."""
