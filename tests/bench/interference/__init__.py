"""Measurements of one client while another works: the common base of `stalls` and `attacks`.

- `settings`: the options of both, checked.
- `quiet`: the client that makes small requests and waits; `dialogue`: a client that sends much in
  as few writes as possible.
- `run`: one case after the other; `report`: what both results have in common.
"""
