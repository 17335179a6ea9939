"""The four papers: data layouts, rivals, protocols, presets and tables. Only `likewise papers` uses it."""
