"""Decides what runs next. Pure: no cluster and no clock."""
