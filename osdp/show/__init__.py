"""Plans for people: in terminals and notebooks, as pictures and in words."""
