"""SendMessage: checks, queue choice, and one append for everything that was collected."""
