"""Rules that both sides follow: pure functions of the standard library, without a host.

`schema`, `gates`, `facts` and `operations` may import these modules, and no other of `node`.
"""
