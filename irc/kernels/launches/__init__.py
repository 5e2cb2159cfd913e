"""A function of flow ops becomes one of kernel launches and views: what ``map-tasks`` does."""
