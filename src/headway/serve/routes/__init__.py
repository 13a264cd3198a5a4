"""What can be asked, by whose convention it is."""
