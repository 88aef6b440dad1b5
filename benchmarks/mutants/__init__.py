"""Small faults put into ordinary training scripts: what do the rules say of programs they were not made for?"""
