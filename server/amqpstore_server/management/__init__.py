"""The management door: the HTTP API on port 15672, compatible with that of RabbitMQ.

It asks the functions of `administration` for what operators do, and reads the state of the broker
through plain functions; no module of the broker knows it. The broker imports it when it starts to
listen, and not without `management_listen`.

- `context`: what a request is answered from; `checks`: of the running store.
- `errors`: refusals as RabbitMQ writes them; `answers`: everything else that is answered.
- `steps`: long work in steps, between which the clients of the broker have their turn.
- `login`: who asks, and what they may see; `guard`: requests that a foreign page has sent;
  `public_address`: where a browser sees this door, in front of which a proxy may stand.
- `bodies`: what a request brings; `listing`: pages, filters and sort orders of lists.
- `path_names`: names as segments of paths; `needs`: who may call a route; `call`: one request to
  it; `routes`: what a route is.
- `topology`: declaring and binding, as AMQP clients do; `clients`: rows of connections, channels
  and consumers; `node`: the row of the node; `queue_bytes`, `queue_head`: how
  much is in a queue, and how old it is.
- `app`: the application that the routes are built into; `openapi`: their description.
- `door`: sockets, limits, and the order of a stop; `http_server`: what serves a connection;
  `follower_door`: what a member of a group answers about itself while it follows.
- `resources`: the routes, a module for each resource.
- `pages`: the web pages, which ask the same routes.

To add a route, write a handler into a module of `resources` and add a `ApiRoute` to the module's
`ROUTES`; add a new module to `resources.ROUTES`. The route says who may call it (`Needs`), and the
description for OpenAPI comes from the same entry. A handler gets a `Call`:

    async def get_vhost(call: Call) -> Answer:
        return await call.json(vhost_row(call.vhost))

    ROUTES = (ApiRoute("GET", "/api/vhosts/{vhost}", get_vhost, "A virtual host", Needs.VHOST),)

- What is in braces is in `call.path`, decoded; `call.vhost` is the virtual host of that name, which
  exists, and which the user may see (for GET) or open (for all others).
- `await call.body(Struct)` decodes the JSON of the body, or answers 400.
- A handler raises `HttpError`, or lets the errors of the broker and of `administration` through:
  `errors` turns them into answers.
- Lists go through `listing.listed`: it pages, sorts and filters, and builds only the rows that are
  asked for, in steps. All that may take more than some milliseconds has to be in steps.
- `await call.carry_out(work)` carries out the work of `administration`.
- Every answer has the headers of `answers.SECURITY_HEADERS`; pages replace the content policy.
"""
