"""`homenode serve` and `homenode proxy`."""
