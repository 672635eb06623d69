"""Plans of moves: what goes where, what it costs, and what is left of a plan that was begun."""
