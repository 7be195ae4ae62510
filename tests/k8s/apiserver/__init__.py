"""A Kubernetes API server for everyday tests: the real REST and watch protocol over objects in memory.

Run it with `python -m tests.k8s.apiserver --port 0`. What it does, it does as kube-apiserver does, which a parity suite
checks on both (`test_apiserver_parity.py`): one resourceVersion, optimistic locking, merge, strategic, JSON and apply
patches, status and scale subresources, finalizers, selectors, paging, watches that resume, expire and bookmark, RBAC
from the stored roles, CRDs. Not there: admission, defaulting, controllers, field ownership, exec and logs.
"""
