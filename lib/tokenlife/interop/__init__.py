"""The book's schedules and traces in the formats of other simulators."""
