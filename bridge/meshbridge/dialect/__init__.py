"""The mesh dialect: operations (`ops`), their builders (`build`), assembly, verifier and folds. Spec: seed 002."""
