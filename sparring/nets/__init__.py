"""Networks: Equinox modules whose every leaf is an array, torso → core → heads."""
