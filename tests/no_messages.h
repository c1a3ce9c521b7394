/* A transport for tests in which no message may leave the host: it refuses each one. */
#ifndef WEFT_TESTS_NO_MESSAGES_H
#define WEFT_TESTS_NO_MESSAGES_H

#include "base/status.h"
#include "weft/transport.h"

static weft_status no_send(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                           void *request) {
    (void)context, (void)tag, (void)data, (void)bytes, (void)request;
    WEFT_FAIL(WEFT_E_BUG, "a message to rank %d leaves the host", peer);
}
static weft_status no_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                              void *request) {
    return no_send(context, peer, tag, data, bytes, request);
}
static weft_status no_test(void *context, void *request, size_t *bytes) {
    (void)bytes;
    return no_send(context, -1, 0, NULL, 0, request);
}
static void no_cancel(void *context, void *request) {
    (void)context, (void)request;
}
static weft_status no_exchange(void *context, const void *mine, size_t bytes, void *all) {
    (void)mine, (void)bytes;
    return no_send(context, -1, 0, NULL, 0, all);
}

/* Callers may replace its functions, `exchange` for instance. */
static inline weft_transport no_messages(const char *name, int rank, int size) {
    return WEFT_STRUCT(weft_transport, .name = name, .rank = rank, .size = size, .request_bytes = 8,
                       .send = no_send, .receive = no_receive, .test = no_test, .cancel = no_cancel,
                       .exchange = no_exchange);
}

#endif
