"""Text on its way in (templates, tokens) and on its way out (half characters, stop strings). Never sees torch."""
