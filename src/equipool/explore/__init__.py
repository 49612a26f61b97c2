"""The explorer page, and the same page for a fitted estimator."""
