"""DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning."""
