"""Shows plans in terminals and notebooks, as plots and in words."""
