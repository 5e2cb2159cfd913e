"""A plan as one page of HTML: what it is, where its time and memory go, and why."""
