"""A store that no broker runs on, read without being opened or changed.

All offline tools see a store through `image.StoreImage`, and that sees it through the engine's own
codec and recovery. From the disk upwards:

- `reading`, files that can only be read, and a segment's records without having all in memory;
- `locks`, how a broker is kept out meanwhile; `snapshot`, what stands in when one runs: the catalog
  of one `instant`, and files that are there to stay, by `pinning`;
- `catalog`, the LMDB tables as far as they can be read; `rebuilt`, what segments and index files
  say where they cannot;
- `segments` and `queues`, what is in each; `contents`, messages and transactions decoded;
- `recovering`, what recovery makes of it in memory; `messages`, messages by id;
- `listing`, the files that are there; `image`, the face of it all;
- `progress`, `exits`, `json_output` and `terminal` serve other tools as well.
"""
