"""Does tuning undo a planted fault? Three models, one bad setting each, tuned and then trained with the plan."""
