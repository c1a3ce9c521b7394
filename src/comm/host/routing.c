/* One transport of two roads: to ranks of this host through the memory that they share
 * (comm/host/intranode.h), to all others through what leads between hosts. Who sends messages by it
 * need not know which is which. */
#include "comm/host/intranode.h"
#include "weft/transport.h"

typedef struct wefti_roads {
    weft_transport far;
    wefti_host *host;
    wefti_near *near;
} roads;

typedef struct road_request {
    bool near;
    alignas(16) unsigned char of[]; /* the road's own request */
} road_request;

static bool is_near(const roads *r, int peer) {
    return peer >= 0 && peer < r->far.size && r->host->world.place_of[peer] >= 0;
}
static wefti_near_request *near_request(road_request *request) {
    return (wefti_near_request *)(void *)request->of;
}

static weft_status roads_send(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                              void *at) {
    roads *r = context;
    road_request *request = at;
    request->near = is_near(r, peer);
    *(request->near ? &r->host->traffic.near_bytes : &r->host->traffic.far_bytes) += (int64_t)bytes;
    if (request->near)
        return wefti_near_send(r->near, peer, tag, data, bytes, near_request(request));
    return r->far.send(r->far.context, peer, tag, data, bytes, request->of);
}

static weft_status roads_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                                 void *at) {
    roads *r = context;
    road_request *request = at;
    request->near = is_near(r, peer);
    if (!request->near) return r->far.receive(r->far.context, peer, tag, data, bytes, request->of);
    wefti_near_receive(r->near, peer, tag, data, bytes, near_request(request));
    return WEFT_OK;
}

static weft_status roads_test(void *context, void *at, size_t *out_bytes) {
    roads *r = context;
    road_request *request = at;
    return request->near ? wefti_near_test(r->near, near_request(request), out_bytes)
                         : r->far.test(r->far.context, request->of, out_bytes);
}

static void roads_cancel(void *context, void *at) {
    roads *r = context;
    road_request *request = at;
    if (request->near)
        wefti_near_cancel(r->near, near_request(request));
    else
        r->far.cancel(r->far.context, request->of);
}

static weft_status roads_exchange(void *context, const void *mine, size_t bytes, void *all) {
    roads *r = context;
    return r->far.exchange(r->far.context, mine, bytes, all);
}

static void roads_close(void *context) {
    roads *r = context;
    wefti_near_destroy(r->near);
    if (r->far.close) r->far.close(r->far.context);
    wefti_free(r);
}

static void close_far(const weft_transport *far) {
    if (far->close) far->close(far->context);
}

weft_status wefti_comm_host_roads(wefti_comm *comm, const weft_transport *far,
                                  weft_transport *out) {
    wefti_host *host = (wefti_host *)comm;
    wefti_near *near = NULL;
    weft_status status = wefti_near_create(host, &near);
    roads *r = status >= 0 && near ? wefti_calloc(1, sizeof *r) : NULL;
    if (status >= 0 && near && !r) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a transport");
    if (status < 0) {
        wefti_near_destroy(near);
        close_far(far);
        return status;
    }
    *out = *far;
    if (!near) return WEFT_OK; /* there is little memory, and all goes the long way */
    *r = (roads){*far, host, near};
    size_t request = sizeof(wefti_near_request);
    if (request < far->request_bytes) request = far->request_bytes;
    out->context = r;
    out->request_bytes = offsetof(road_request, of) + request;
    out->send = roads_send;
    out->receive = roads_receive;
    out->test = roads_test;
    out->cancel = roads_cancel;
    out->exchange = roads_exchange;
    out->close = roads_close;
    return WEFT_OK;
}
