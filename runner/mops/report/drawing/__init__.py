"""Draws figures as SVG whose colours follow the theme of the page."""
