/* Fuzzes what a server of parameters hears from ranks that know the key, and err or mean harm:
 * words in any order, of any size, for any shard. The server goes on. When the ranks have left it
 * has no shards, and no memory of any. */
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/connection/connection.h"
#include "graph/graph.h"
#include "server/host.h"
#include "server/words.h"
#include "weft/graph.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef WEFT_HAVE_OPENSSL

enum { RANKS = 2, SHARDS = 4, MEMORY = 1 << 16, WAIT_MS = 10, WAITS = 1000 };

static void require(int holds) {
    if (!holds) abort();
}

static const unsigned char key[WEFTI_CONN_KEY] = {7, 8, 9};

typedef struct rank_side {
    wefti_conn_hub *hub;
    wefti_conn_link *link;  /* NULL: there is none */
    uint32_t shard[SHARDS]; /* that were bound last */
    size_t bound;
} rank_side;

static struct {
    wefti_server *server;
    struct sockaddr_storage at;
    weft_graph *ops;
    rank_side rank[RANKS];
} world;

static weft_status heard(void *context, wefti_conn_link *link, const wefti_conn_frame *f) {
    rank_side *r = context;
    (void)link;
    if (f->kind == WEFTI_WORD_BOUND && f->bytes >= 4)
        memcpy(&r->shard[r->bound++ % SHARDS], f->body, 4); /* little-endian, as this machine */
    return WEFT_OK;
}

static void opened(void *context, wefti_conn_link *link) {
    (void)context;
    (void)link;
}

static bool takes(void *context, wefti_conn_side from) {
    (void)context;
    (void)from;
    return false; /* nobody calls ranks */
}

static void closed(void *context, wefti_conn_link *link, weft_status status, const char *why) {
    rank_side *r = context;
    (void)status;
    (void)why;
    if (r->link == link) r->link = NULL;
}

static void open_all(void) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const wefti_server_options o = {.threads = 1, .key = key, .memory_bytes = MEMORY};
    memcpy(&world.at, &any, sizeof any);
    require(wefti_server_open(&o, &world.at, sizeof any, &world.server) == WEFT_OK);
    require(weft_graph_create(&world.ops) == WEFT_OK);
    for (int i = 0; i < RANKS; i++) {
        struct sockaddr_storage at = {0};
        wefti_conn_hub_options hub = {.me = {.number = i, .role = WEFTI_ROLE_WORKER},
                                      .seconds = 60,
                                      .queue_bytes = 1 << 22,
                                      .context = &world.rank[i],
                                      .takes = takes,
                                      .opened = opened,
                                      .heard = heard,
                                      .closed = closed};
        memcpy(hub.key, key, sizeof key);
        memcpy(&at, &any, sizeof any);
        require(wefti_conn_hub_open(&hub, &at, sizeof any, &world.rank[i].hub) == WEFT_OK);
    }
}

static bool is_ready(int i) {
    struct pollfd polled = {wefti_conn_hub_poller(world.rank[i].hub), POLLIN, 0};
    return poll(&polled, 1, 0) > 0;
}

/* Until nobody has something to say. */
static void turn_all(void) {
    bool more = true;
    for (int n = 0; more && n < WAITS; n++) {
        more = n < 2;
        require(wefti_server_turn(world.server, 0) == WEFT_OK);
        for (int i = 0; i < RANKS; i++) {
            more = is_ready(i) || more;
            require(wefti_conn_hub_turn(world.rank[i].hub, 0) == WEFT_OK);
        }
    }
}

/* ---- the input ---- */

typedef struct input {
    const uint8_t *data;
    size_t size;
} input;
static unsigned take(input *in) {
    if (!in->size) return 0;
    in->size--;
    return *in->data++;
}

/* A BIND that is right, but for bytes that the input changes. */
static size_t make_bind(input *in, int32_t rank, unsigned char *body) {
    static const char *const ops[] = {"opt_sgd", "opt_adamw", "opt_lamb", "opt_adafactor", "add"};
    const weft_desc desc = weft_desc_of(WEFT_F32, 1, (int64_t[]){take(in)});
    const weft_op_def *op = wefti_op_find(world.ops->ops, ops[take(in) % 5]);
    const unsigned terms = 1 + take(in) % 3, states = take(in) % 3, absent = take(in) % 3;
    unsigned char *made;
    size_t bytes;
    if (!op) op = wefti_op_find(world.ops->ops, ops[0]);
    const wefti_bind_word word = {.session = take(in) % 2,
                                  .rank = rank,
                                  .served = {.name = "x",
                                             .desc = desc,
                                             .whole = desc,
                                             .region = {.size = {desc.shape[0]}},
                                             .terms = (int32_t)terms,
                                             .term = (int32_t)(take(in) % 4) - 1,
                                             .square = WEFT_F64,
                                             .rule = {.op = op,
                                                      .attrs = op->attrs,
                                                      .absent = (int)absent,
                                                      .states = (int)states,
                                                      .state_names = {"m", "v"},
                                                      .state_descs = {desc, desc}}}};
    require(wefti_bind_encode(&word, &made, &bytes) == WEFT_OK);
    memcpy(body, made, bytes);
    wefti_free(made);
    for (unsigned n = take(in) % 4; n > 0; n--) {
        const size_t at = (take(in) << 8 | take(in)) % bytes;
        body[at] = (unsigned char)take(in);
    }
    return bytes;
}

/* A head, and bytes of the input. */
static size_t make_word(input *in, const rank_side *r, unsigned char *body) {
    const unsigned shard = take(in);
    const uint32_t id = shard < 128 ? r->shard[shard % SHARDS] : shard;
    memset(body, 0, WEFTI_WORD_HEAD);
    memcpy(body, &id, 4);
    body[4] = (unsigned char)take(in);
    const size_t bytes = take(in) | take(in) << 8, given = take(in);
    for (size_t i = 0; i < bytes; i++)
        body[WEFTI_WORD_HEAD + i] = i < given ? (unsigned char)take(in) : 0;
    return WEFTI_WORD_HEAD + bytes;
}

static void say_one(input *in, unsigned char *body) {
    const int32_t rank = (int32_t)(take(in) % RANKS);
    rank_side *r = &world.rank[rank];
    const unsigned kind = take(in) % (WEFTI_WORDS + 1), tag = take(in), place = take(in);
    const size_t bytes =
        kind == WEFTI_WORD_BIND ? make_bind(in, rank, body) : make_word(in, r, body);
    const struct iovec part = {body, bytes};
    if (!r->link && wefti_conn_hub_call(r->hub, (wefti_conn_side){0, WEFTI_ROLE_SERVER}, &world.at,
                                        sizeof(struct sockaddr_in), &r->link) < 0)
        abort();
    const weft_status sent = wefti_conn_link_send(r->link, kind, tag, place, &part, 1);
    require(sent == WEFT_OK || sent == WEFT_PENDING || sent == WEFT_E_PEER);
    turn_all();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned char body[WEFTI_CONN_BODY];
    input in = {data, size};
    if (!world.server) open_all();
    while (in.size > 0) say_one(&in, body);
    for (int i = 0; i < RANKS; i++) {
        if (world.rank[i].link) wefti_conn_link_close(world.rank[i].link);
        world.rank[i] = (rank_side){.hub = world.rank[i].hub};
    }
    for (int n = 0; n < WAITS && wefti_server_counts_of(world.server).ranks > 0; n++)
        require(wefti_server_turn(world.server, WAIT_MS) == WEFT_OK);
    const wefti_server_counts left = wefti_server_counts_of(world.server);
    require(left.ranks == 0 && left.shards == 0 && left.bytes == 0);
    return 0;
}

#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)data;
    (void)size;
    return 0;
}
#endif
