"""The autoscaler: from the pods' metrics to a number of replicas, with the reason."""
