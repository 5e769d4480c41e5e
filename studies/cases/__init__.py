"""Small trainings, each run through whole commands, and what a user must get from them."""
