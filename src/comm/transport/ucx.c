/* A transport over UCX: comm/transport/transport.h.
 *
 * Each rank has one worker. An endpoint is created with the first message to a rank, or after a
 * long wait for a message from it, because only connected ranks learn of its death. A tag consists
 * of the sender's rank and the caller's tag. Requests end in callbacks that write into the
 * caller's memory; cancelling waits for them. */
#include "comm/transport/transport.h"

#ifdef WEFT_HAVE_UCX

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/transport/ucx_load.h"

enum {
    RANK_SHIFT = 40,            /* bits of a tag below the rank */
    MOST_ADDRESS = 64 << 10,    /* bytes of a worker's address */
    CLOSE_NS = 2000000000,      /* how long closing waits for others */
    UCX_ABANDON_NS = 500000000, /* the same if the world has failed */
    CANCEL_NS = 500000000,      /* and cancelling for the library */
    MOST_EVENTS = 16,           /* handled before requests are looked at */
    UCX_LONG_LOOKS = 2000, /* looks after which a sender that nothing comes from is connected */
    /* Of the pieces in which TCP takes long messages. UCX's own are 8 KiB and 64 KiB. */
    MOST_PIECE = 256 << 10,
    PIECES_BYTES = 8 << 20, /* of all connections together, in each direction */
};

typedef struct ucx_peer {
    ucp_ep_h endpoint; /* NULL: none yet */
    const void *address;
    ucs_status_t failure; /* UCS_OK: none */
} ucx_peer;

typedef struct ucx_side {
    wefti_ucx_calls call;
    wefti_exchange exchange;
    int32_t rank, size;
    bool logs;      /* our handler is set */
    bool cut;       /* work under way has failed, or was given up */
    bool abandoned; /* the world has failed */
    bool stuck;     /* UCX does not give up what it was told to: it is not called any more */
    ucp_context_h context;
    ucp_worker_h worker;
    ucx_peer *peer;           /* [size] */
    unsigned char *addresses; /* [size][most] */
    uint64_t turn;            /* times of progress */
} ucx_side;

typedef struct ucx_request {
    void *request; /* NULL: done at once, or freed */
    int32_t peer;
    bool receives;
    bool done;
    ucs_status_t status;
    size_t bytes;
    uint64_t turn;  /* of the last test */
    uint32_t looks; /* that found nothing */
} ucx_request;

/* UCX says what it is doing on standard output; the library says nothing. */
static ucs_log_func_rc_t say_nothing(const char *file, unsigned line, const char *function,
                                     ucs_log_level_t level,
                                     const ucs_log_component_config_t *component,
                                     const char *message, va_list arguments) {
    (void)file, (void)line, (void)function, (void)level, (void)component, (void)message;
    (void)arguments;
    return UCS_LOG_FUNC_RC_STOP;
}

static weft_status failed(const ucx_side *s, int32_t peer, ucs_status_t status) {
    WEFT_FAIL(WEFT_E_PEER, "UCX: %s (rank %d)", s->call.ucs_status_string(status), (int)peer);
}

/* As each call handles one event of TCP only (take_events_singly). */
static void progress(ucx_side *s) {
    for (int i = 0; i < MOST_EVENTS && !s->stuck; i++)
        if (s->call.ucp_worker_progress(s->worker) == 0) break;
}

/* --- connections --- */

static void peer_has_failed(void *argument, ucp_ep_h endpoint, ucs_status_t status) {
    (void)endpoint;
    ucx_peer *peer = argument;
    if (peer->failure == UCS_OK) peer->failure = status;
}

static weft_status connect_to(ucx_side *s, int32_t rank) {
    ucx_peer *peer = &s->peer[rank];
    if (peer->failure != UCS_OK) return failed(s, rank, peer->failure);
    if (peer->endpoint) return WEFT_OK;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .address = peer->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {peer_has_failed, peer},
    };
    ucs_status_t status = s->call.ucp_ep_create(s->worker, &params, &peer->endpoint);
    if (status == UCS_OK) return WEFT_OK;
    peer->endpoint = NULL;
    peer->failure = status;
    return failed(s, rank, status);
}

/* NULL: at once, or what to wait for. */
static void *begin_close(ucx_side *s, ucx_peer *peer, bool force) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0};
    ucs_status_ptr_t request = s->call.ucp_ep_close_nbx(peer->endpoint, &param);
    peer->endpoint = NULL;
    return UCS_PTR_IS_PTR(request) ? request : NULL;
}

static void end_close(ucx_side *s, void *request, int64_t until) {
    if (!request || s->stuck) return;
    while (s->call.ucp_request_check_status(request) == UCS_INPROGRESS) {
        if (wefti_now_ns() > until) {
            s->stuck = true;
            return;
        }
        progress(s);
        sched_yield();
    }
    s->call.ucp_request_free(request);
}

/* --- requests --- */

static void sent(void *request, ucs_status_t status, void *argument) {
    (void)request;
    ucx_request *r = argument;
    r->status = status;
    r->done = true;
}
static void received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                     void *argument) {
    (void)request;
    ucx_request *r = argument;
    r->status = status;
    r->bytes = info->length;
    r->done = true;
}

/* What a call that starts something has returned. */
static weft_status started(ucx_side *s, ucs_status_ptr_t pointer, ucx_request *r) {
    if (UCS_PTR_IS_ERR(pointer)) return failed(s, r->peer, UCS_PTR_STATUS(pointer));
    r->request = pointer;
    if (!pointer) r->done = true;
    return WEFT_OK;
}

static weft_status check_tag(int peer, uint64_t tag) {
    WEFT_REQUIRE(tag >> RANK_SHIFT == 0, WEFT_E_ARG, "tag %llu for rank %d; tags have %d bits",
                 (unsigned long long)tag, peer, (int)RANK_SHIFT);
    return WEFT_OK;
}

static weft_status ucx_send(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                            void *request) {
    ucx_side *s = context;
    ucx_request *r = request;
    WEFT_TRY(check_tag(peer, tag));
    WEFT_TRY(connect_to(s, peer));
    *r = (ucx_request){.peer = peer};
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = sent,
                                 .user_data = r};
    return started(s,
                   s->call.ucp_tag_send_nbx(s->peer[peer].endpoint, data, bytes,
                                            (uint64_t)s->rank << RANK_SHIFT | tag, &param),
                   r);
}

static weft_status ucx_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                               void *request) {
    ucx_side *s = context;
    ucx_request *r = request;
    WEFT_TRY(check_tag(peer, tag));
    *r = (ucx_request){.peer = peer, .receives = true};
    /* Always through the callback: what UCX 1.13 says of a message that is there already, its
     * length too, is not filled in. */
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = received,
        .user_data = r,
    };
    ucs_status_ptr_t pointer = s->call.ucp_tag_recv_nbx(
        s->worker, data, bytes, (uint64_t)peer << RANK_SHIFT | tag, ~(uint64_t)0, &param);
    return started(s, pointer, r);
}

static void release(ucx_side *s, ucx_request *r) {
    if (r->request && !s->stuck) s->call.ucp_request_free(r->request);
    r->request = NULL;
}

/* UCX gives up sends, and receives that have begun, only together with their connection. If it does
 * not even then, it gets no chance to touch their memory any more. */
static void ucx_cancel(void *context, void *request) {
    ucx_side *s = context;
    ucx_request *r = request;
    ucx_peer *peer = &s->peer[r->peer];
    int64_t until = wefti_now_ns() + CANCEL_NS;
    if (!r->done && r->receives && !s->stuck) s->call.ucp_request_cancel(s->worker, r->request);
    if (!r->done) progress(s);
    s->cut |= !r->done;
    if (!r->done && peer->endpoint && !s->stuck) {
        if (peer->failure == UCS_OK) peer->failure = UCS_ERR_CANCELED;
        end_close(s, begin_close(s, peer, true), until);
    }
    while (!r->done && !s->stuck) {
        progress(s);
        sched_yield();
        s->stuck = !r->done && wefti_now_ns() > until;
    }
    if (r->done) release(s, r);
}

/* A sender that is not connected, and that nothing comes from, may be dead. */
static void look_after(ucx_side *s, ucx_request *r) {
    if (r->receives && r->looks++ == UCX_LONG_LOOKS && !s->peer[r->peer].endpoint)
        (void)connect_to(s, r->peer); /* its failure is seen by the next test */
}

/* A caller that tests many requests in a row makes progress once, not once for each request: only
 * when one request is tested for the second time. */
static weft_status ucx_test(void *context, void *request, size_t *out_bytes) {
    ucx_side *s = context;
    ucx_request *r = request;
    if (!r->done && r->turn == s->turn) {
        s->turn++;
        progress(s);
        look_after(s, r);
    }
    r->turn = s->turn;
    if (!r->done) {
        ucs_status_t failure = s->peer[r->peer].failure;
        if (failure == UCS_OK || !r->receives) return WEFT_PENDING;
        ucx_cancel(s, r); /* nothing will come any more */
        if (!r->done || r->status != UCS_OK) return failed(s, r->peer, failure);
    }
    release(s, r);
    s->cut |= r->status != UCS_OK;
    if (r->status != UCS_OK) return failed(s, r->peer, r->status);
    if (out_bytes && r->receives) *out_bytes = r->bytes;
    return WEFT_OK;
}

static weft_status ucx_exchange(void *context, const void *mine, size_t bytes, void *all) {
    ucx_side *s = context;
    return s->exchange.allgather(s->exchange.context, mine, bytes, all);
}

/* --- beginning and end --- */

/* UCX asserts, and so ends the process, when it is taken down with work under way that a failure
 * has left behind. After one it stays as it is, its connections closed, until the process ends. */
static void take_down(ucx_side *s) {
    if (s->cut || s->stuck) return; /* and goes on saying nothing */
    if (s->worker) s->call.ucp_worker_destroy(s->worker);
    if (s->context) s->call.ucp_cleanup(s->context);
    if (s->logs) s->call.ucs_log_pop_handler();
}

static void ucx_abandon(void *context) {
    ((ucx_side *)context)->abandoned = true;
}

static void ucx_close(void *context) {
    ucx_side *s = context;
    int64_t until = wefti_now_ns() + (s->abandoned ? UCX_ABANDON_NS : CLOSE_NS);
    void **closing = s->peer ? wefti_calloc((size_t)s->size, sizeof *closing) : NULL;
    for (int32_t r = 0; s->peer && r < s->size && !s->stuck; r++) {
        ucx_peer *peer = &s->peer[r];
        if (!peer->endpoint) continue;
        void *request = begin_close(s, peer, !closing || peer->failure != UCS_OK);
        if (closing)
            closing[r] = request;
        else
            end_close(s, request, until);
    }
    for (int32_t r = 0; closing && r < s->size; r++) end_close(s, closing[r], until);
    wefti_free(closing);
    take_down(s);
    wefti_free(s->peer);
    wefti_free(s->addresses);
    wefti_free(s);
}

static weft_status require(const ucx_side *s, ucs_status_t status, const char *what) {
    WEFT_REQUIRE(status == UCS_OK, WEFT_E_DEVICE, "UCX cannot %s: %s", what,
                 s->call.ucs_status_string(status));
    return WEFT_OK;
}

/* UCX copies pieces of a message through buffers, one for each connection in the middle of a
 * message. Longer pieces need fewer calls. With many ranks they get shorter, down to UCX's
 * default, to limit the memory for messages from all ranks at once. Older versions do not know
 * these settings. */
static void lengthen_pieces(const ucx_side *s, ucp_config_t *config) {
    static const struct {
        const char *variable, *name;
        int32_t usual;
    } piece[] = {{"UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", 8 << 10},
                 {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", 64 << 10}};
    int32_t bytes = PIECES_BYTES / s->size;
    if (bytes > MOST_PIECE) bytes = MOST_PIECE;
    for (int i = 0; i < 2; i++) {
        char text[16];
        if (bytes <= piece[i].usual || getenv(piece[i].variable)) continue;
        (void)snprintf(text, sizeof text, "%d", (int)bytes);
        (void)s->call.ucp_config_modify(config, piece[i].name, text);
    }
}

/* Two ranks that connect to each other at the same time have two sockets. If one of them gives up
 * at that moment, UCX (at least up to 1.18) may close the other connection while it handles an
 * event of the first socket, and then handles the event of the second socket, which came in the
 * same batch. Its assertion fails and ends the process. Events are therefore taken one at a time.
 */
static void take_events_singly(const ucx_side *s, ucp_config_t *config) {
    if (!getenv("UCX_TCP_MAX_POLL")) (void)s->call.ucp_config_modify(config, "MAX_POLL", "1");
}

/* What the environment says of UCX's own settings stands; the rest is as weft needs it. */
static weft_status configure(const ucx_side *s, const char *interface, ucp_config_t *config) {
    if (!getenv("UCX_TLS"))
        WEFT_TRY(
            require(s, s->call.ucp_config_modify(config, "TLS", "^sm"), "leave shared memory out"));
    WEFT_TRY(require(s, s->call.ucp_config_modify(config, "NET_DEVICES", interface),
                     "use the network interface"));
    /* Connecting to a host that is gone must not block. Older versions do not know it. */
    (void)s->call.ucp_config_modify(config, "CONN_NB", "y");
    take_events_singly(s, config);
    lengthen_pieces(s, config);
    return WEFT_OK;
}

static weft_status open_worker(ucx_side *s, const char *interface) {
    ucp_config_t *config;
    WEFT_TRY(require(s, s->call.ucp_config_read(NULL, NULL, &config), "read its configuration"));
    weft_status status = configure(s, interface, config);
    ucp_params_t params = {.field_mask =
                               UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                           .features = UCP_FEATURE_TAG,
                           .estimated_num_eps = (size_t)s->size};
    if (status >= 0)
        status = require(
            s, s->call.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &s->context),
            "be initialized");
    s->call.ucp_config_release(config);
    WEFT_TRY(status);
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t made = s->call.ucp_worker_create(s->context, &worker, &s->worker);
    WEFT_REQUIRE(made == UCS_OK, WEFT_E_DEVICE, "UCX cannot use the network interface '%s': %s",
                 interface, s->call.ucs_status_string(made));
    return WEFT_OK;
}

static bool is_running(const char *interface) {
    struct ifreq request = {0};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    (void)snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    bool known = s >= 0 && ioctl(s, SIOCGIFFLAGS, &request) == 0;
    if (s >= 0) close(s);
    return !known || ((request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_RUNNING));
}

/* UCX itself would only warn. Devices that are no network interfaces are named as UCX does
 * ("mlx5_0:1"). */
static weft_status check_interface(const char *interface) {
    char device[64], path[128], known[400] = "";
    (void)snprintf(device, sizeof device, "%s", interface);
    device[strcspn(device, ":")] = 0;
    (void)snprintf(path, sizeof path, "/sys/class/infiniband/%s", device);
    if (!strchr(device, '/') && access(path, F_OK) == 0) return WEFT_OK;
    if (if_nametoindex(interface) != 0) {
        WEFT_REQUIRE(is_running(interface), WEFT_E_ARG,
                     "the network interface '%s' is down, or its cable is out", interface);
        return WEFT_OK;
    }
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i && i->if_index != 0; i++) {
        size_t n = strlen(known);
        (void)snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", i->if_name);
    }
    if (all) if_freenameindex(all);
    WEFT_FAIL(WEFT_E_ARG, "network interface '%s' does not exist; known: %s", interface, known);
}

static weft_status open_side(ucx_side *s, const char *interface) {
    WEFT_TRY(wefti_ucx_load(&s->call));
    s->call.ucs_log_push_handler(say_nothing);
    s->logs = true;
    if (!interface || !*interface) interface = "lo";
    WEFT_TRY(check_interface(interface));
    return open_worker(s, interface);
}

typedef struct ucx_entry {
    uint64_t bytes; /* of the address; 0: there is none, because */
    char failure[248];
} ucx_entry;

/* Everyone's address, or why somebody has none. */
static weft_status swap_addresses(ucx_side *s, ucx_entry *entries, const ucx_entry *mine,
                                  const void *address) {
    size_t most = 0;
    WEFT_TRY(s->exchange.allgather(s->exchange.context, mine, sizeof *mine, entries));
    for (int32_t r = 0; r < s->size; r++) {
        entries[r].failure[sizeof entries[r].failure - 1] = 0;
        WEFT_REQUIRE_OF(r, entries[r].bytes > 0, WEFT_E_PEER, "rank %d: %s", (int)r,
                        entries[r].failure);
        WEFT_REQUIRE_OF(r, entries[r].bytes <= MOST_ADDRESS, WEFT_E_CORRUPT,
                        "rank %d has an address of %llu bytes", (int)r,
                        (unsigned long long)entries[r].bytes);
        if (entries[r].bytes > most) most = (size_t)entries[r].bytes;
    }
    unsigned char *padded = wefti_calloc(1, most);
    s->addresses = wefti_calloc((size_t)s->size, most);
    s->peer = wefti_calloc((size_t)s->size, sizeof *s->peer);
    if (!padded || !s->addresses || !s->peer) {
        wefti_free(padded);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %d addresses", (int)s->size);
    }
    memcpy(padded, address, (size_t)mine->bytes);
    weft_status status = s->exchange.allgather(s->exchange.context, padded, most, s->addresses);
    wefti_free(padded);
    for (int32_t r = 0; r < s->size; r++) s->peer[r].address = s->addresses + (size_t)r * most;
    return status;
}

static weft_status meet(ucx_side *s, weft_status opened) {
    ucx_entry *entries, mine = {0};
    ucp_address_t *address = NULL;
    size_t bytes = 0;
    weft_status status = opened;
    if (status >= 0)
        status = require(s, s->call.ucp_worker_get_address(s->worker, &address, &bytes),
                         "say its address");
    mine.bytes = status >= 0 ? bytes : 0;
    if (status < 0) (void)snprintf(mine.failure, sizeof mine.failure, "%s", weft_error_message());
    entries = wefti_calloc((size_t)s->size, sizeof *entries);
    if (!entries) return WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", (int)s->size);
    weft_status met = swap_addresses(s, entries, &mine, address);
    if (address) s->call.ucp_worker_release_address(s->worker, address);
    wefti_free(entries);
    return status < 0 ? wefti_adopt(status, mine.failure) : met;
}

weft_status wefti_ucx_transport(int32_t rank, int32_t size, const wefti_exchange *exchange,
                                const char *interface, weft_transport *out) {
    ucx_side *s;
    WEFT_REQUIRE(size >= 1 && size < 1 << (63 - RANK_SHIFT) && rank >= 0 && rank < size, WEFT_E_ARG,
                 "rank %d of %d", (int)rank, (int)size);
    WEFT_NEW(s, ucx_side);
    s->rank = rank;
    s->size = size;
    s->exchange = *exchange;
    weft_status status = meet(s, open_side(s, interface));
    if (status < 0) {
        char message[1024];
        (void)snprintf(message, sizeof message, "%s", weft_error_message());
        ucx_close(s);
        return wefti_adopt(status, message);
    }
    *out = WEFT_STRUCT(weft_transport, .name = "ucx", .context = s, .rank = rank, .size = size,
                       .any_thread = true, .request_bytes = sizeof(ucx_request), .send = ucx_send,
                       .receive = ucx_receive, .test = ucx_test, .cancel = ucx_cancel,
                       .exchange = ucx_exchange, .close = ucx_close, .abandon = ucx_abandon);
    return WEFT_OK;
}

#else

weft_status wefti_ucx_transport(int32_t rank, int32_t size, const wefti_exchange *exchange,
                                const char *interface, weft_transport *out) {
    (void)rank;
    (void)size;
    (void)exchange;
    (void)interface;
    (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "this weft was built without UCX");
}

#endif
