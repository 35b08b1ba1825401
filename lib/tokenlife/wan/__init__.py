"""Between data centres: what distance, loss and few bits a second leave of a job's traffic."""
