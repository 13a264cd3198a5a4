"""The images of the documentation: a module per topic, each with a table `FIGURES`."""
