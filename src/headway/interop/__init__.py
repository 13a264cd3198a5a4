"""Models in the formats of others: in (`headway import`) and out (`headway export`)."""
