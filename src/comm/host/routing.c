/* A transport that routes: messages to ranks of this host go through shared memory
 * (comm/host/intranode.h), all others through the transport between hosts. The sender need not
 * know which path a message takes. */
#include "comm/host/intranode.h"
#include "weft/transport.h"

typedef struct wefti_routing {
    weft_transport internode;
    wefti_host *host;
    wefti_intranode *intranode;
} routing;

typedef struct routing_request {
    bool intranode;
    alignas(16) unsigned char of[]; /* the road's own request */
} routing_request;

static bool is_intranode(const routing *r, int peer) {
    return peer >= 0 && peer < r->internode.size && r->host->world.place_of[peer] >= 0;
}
static wefti_intranode_request *intranode_request(routing_request *request) {
    return (wefti_intranode_request *)(void *)request->of;
}

static weft_status routing_send(void *context, int peer, uint64_t tag, const void *data,
                                size_t bytes, void *at) {
    routing *r = context;
    routing_request *request = at;
    request->intranode = is_intranode(r, peer);
    *(request->intranode ? &r->host->traffic.intranode_bytes : &r->host->traffic.internode_bytes) +=
        (int64_t)bytes;
    if (request->intranode)
        return wefti_intranode_send(r->intranode, peer, tag, data, bytes,
                                    intranode_request(request));
    return r->internode.send(r->internode.context, peer, tag, data, bytes, request->of);
}

static weft_status routing_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                                   void *at) {
    routing *r = context;
    routing_request *request = at;
    request->intranode = is_intranode(r, peer);
    if (!request->intranode)
        return r->internode.receive(r->internode.context, peer, tag, data, bytes, request->of);
    wefti_intranode_receive(r->intranode, peer, tag, data, bytes, intranode_request(request));
    return WEFT_OK;
}

static weft_status routing_test(void *context, void *at, size_t *out_bytes) {
    routing *r = context;
    routing_request *request = at;
    return request->intranode
               ? wefti_intranode_test(r->intranode, intranode_request(request), out_bytes)
               : r->internode.test(r->internode.context, request->of, out_bytes);
}

static void routing_cancel(void *context, void *at) {
    routing *r = context;
    routing_request *request = at;
    if (request->intranode)
        wefti_intranode_cancel(r->intranode, intranode_request(request));
    else
        r->internode.cancel(r->internode.context, request->of);
}

static weft_status routing_exchange(void *context, const void *mine, size_t bytes, void *all) {
    routing *r = context;
    return r->internode.exchange(r->internode.context, mine, bytes, all);
}

static void routing_abandon(void *context) {
    const routing *r = context;
    if (r->internode.abandon) r->internode.abandon(r->internode.context);
}

static uint64_t routing_moved(void *context) {
    const routing *r = context;
    return r->internode.moved(r->internode.context);
}

static void routing_close(void *context) {
    routing *r = context;
    wefti_intranode_destroy(r->intranode);
    if (r->internode.close) r->internode.close(r->internode.context);
    wefti_free(r);
}

static void close_internode(const weft_transport *internode) {
    if (internode->close) internode->close(internode->context);
}

weft_status wefti_comm_host_route(wefti_comm *comm, const weft_transport *internode,
                                  weft_transport *out) {
    wefti_host *host = (wefti_host *)comm;
    wefti_intranode *intranode = NULL;
    weft_status status = wefti_intranode_create(host, &intranode);
    routing *r = status >= 0 && intranode ? wefti_calloc(1, sizeof *r) : NULL;
    if (status >= 0 && intranode && !r)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a transport");
    if (status < 0) {
        wefti_intranode_destroy(intranode);
        close_internode(internode);
        return status;
    }
    *out = *internode;
    if (!intranode) return WEFT_OK; /* there is little memory, and all goes the long way */
    *r = (routing){*internode, host, intranode};
    size_t request = sizeof(wefti_intranode_request);
    if (request < internode->request_bytes) request = internode->request_bytes;
    out->context = r;
    out->request_bytes = offsetof(routing_request, of) + request;
    out->send = routing_send;
    out->receive = routing_receive;
    out->test = routing_test;
    out->cancel = routing_cancel;
    out->exchange = routing_exchange;
    out->close = routing_close;
    out->abandon = routing_abandon;
    if (internode->moved) out->moved = routing_moved;
    return WEFT_OK;
}
