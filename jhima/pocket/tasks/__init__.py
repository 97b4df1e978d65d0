"""Intent templates of the five sites, and the task lists made of them."""
