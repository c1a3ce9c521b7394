/* Connections: see wire.h. */
#include "launch/wire/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"

static void magic(unsigned char out[WEFTI_WIRE_MAGIC], char what) {
    memcpy(out, "weft", 4);
    out[4] = (unsigned char)what;
    out[5] = out[6] = 0;
    out[7] = WEFTI_WIRE_VERSION;
}
static bool is_magic(const unsigned char *data, char what) {
    unsigned char wanted[WEFTI_WIRE_MAGIC];
    magic(wanted, what);
    return memcmp(data, wanted, sizeof wanted) == 0;
}

weft_status wefti_shared_body_create(size_t bytes, wefti_shared_body **out) {
    *out = wefti_calloc(1, sizeof **out + bytes + WEFTI_FRAME_EXTRA);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a message of %zu bytes", bytes);
    (*out)->holders = 1;
    (*out)->bytes = bytes;
    return WEFT_OK;
}

void wefti_shared_body_release(wefti_shared_body *block) {
    if (block && --block->holders == 0) wefti_free(block);
}

void wefti_wire_close(wefti_wire *link) {
    wefti_tls_end(link->connection);
    if (link->fd >= 0) close(link->fd);
    wefti_free(link->in);
    wefti_free(link->out);
    for (; link->insert_at < link->inserts; link->insert_at++)
        wefti_shared_body_release(link->insert[link->insert_at].block);
    wefti_free(link->insert);
    *link = (wefti_wire){.fd = -1};
}

static weft_status moved(ssize_t n, size_t *out_bytes) {
    *out_bytes = n > 0 ? (size_t)n : 0;
    if (n > 0) return WEFT_OK;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_FAIL(WEFT_E_PEER, "%s", n == 0 ? "connection closed" : strerror(errno));
}

static weft_status take(wefti_wire *link, void *data, size_t room, size_t *out_bytes) {
    if (link->connection) return wefti_tls_read(link->connection, data, room, out_bytes);
    return moved(recv(link->fd, data, room, MSG_DONTWAIT), out_bytes);
}

static weft_status give(wefti_wire *link, const void *data, size_t bytes, size_t *out_bytes) {
    if (link->connection) return wefti_tls_write(link->connection, data, bytes, out_bytes);
    return moved(send(link->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT), out_bytes);
}

/* A handshake's few bytes always fit into a fresh socket's buffer. */
static weft_status send_whole(wefti_wire *link, const unsigned char *data, size_t bytes) {
    size_t sent = 0;
    WEFT_TRY(give(link, data, bytes, &sent));
    WEFT_REQUIRE(sent == bytes, WEFT_E_PEER,
                 "the connection broke in its handshake: nothing can be sent");
    return WEFT_OK;
}

static weft_status greet(wefti_wire *link) {
    unsigned char greeting[WEFTI_WIRE_GREETING];
    WEFT_TRY(wefti_random_bytes(link->nonces.scheduler, WEFTI_NONCE_BYTES));
    magic(greeting, 'G');
    memcpy(greeting + WEFTI_WIRE_MAGIC, link->nonces.scheduler, WEFTI_NONCE_BYTES);
    WEFT_TRY(send_whole(link, greeting, sizeof greeting));
    return WEFT_OK;
}

/* The scheduler says that it wants TLS; the member begins that. */
static weft_status announce_tls(wefti_wire *link) {
    unsigned char greeting[WEFTI_WIRE_GREETING] = {0};
    magic(greeting, 'T');
    WEFT_TRY(send_whole(link, greeting, sizeof greeting));
    return WEFT_OK;
}

weft_status wefti_wire_open(wefti_wire *link, int fd, bool scheduler, const wefti_secret *secret,
                            wefti_tls *tls) {
    *link = (wefti_wire){.fd = fd, .scheduler = scheduler, .secret = secret, .tls = tls};
    link->phase = !scheduler ? WEFTI_WIRE_GREET : tls ? WEFTI_WIRE_TLS : WEFTI_WIRE_PROVE;
    weft_status status = !scheduler ? WEFT_OK : tls ? announce_tls(link) : greet(link);
    if (status < 0) wefti_wire_close(link);
    return status;
}

static void open_streams(wefti_wire *link) {
    wefti_wire_stream member = {.from_scheduler = false}, scheduler = {.from_scheduler = true};
    wefti_prove(link->secret, WEFTI_KEY_MEMBER, &link->nonces, member.key);
    wefti_prove(link->secret, WEFTI_KEY_SCHEDULER, &link->nonces, scheduler.key);
    link->sends = link->scheduler ? scheduler : member;
    link->receives = link->scheduler ? member : scheduler;
    link->phase = WEFTI_WIRE_OPEN;
    link->hand_used = 0;
}

/* The scheduler looks at the member's proof. */
static weft_status check_answer(wefti_wire *link) {
    const unsigned char *data = link->hand;
    unsigned char proof[WEFTI_DIGEST_BYTES], reply[WEFTI_WIRE_WELCOME] = {0};
    memcpy(link->nonces.member, data + WEFTI_WIRE_MAGIC, WEFTI_NONCE_BYTES);
    wefti_prove(link->secret, WEFTI_PROOF_MEMBER, &link->nonces, proof);
    bool proven =
        is_magic(data, 'A') &&
        wefti_equal_secretly(proof, data + WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES, sizeof proof);
    magic(reply, proven ? 'W' : 'N');
    if (proven)
        wefti_prove(link->secret, WEFTI_PROOF_SCHEDULER, &link->nonces, reply + WEFTI_WIRE_MAGIC);
    weft_status status = send_whole(link, reply, sizeof reply);
    WEFT_REQUIRE(proven, WEFT_E_ARG, "a process that does not know the job's secret");
    WEFT_TRY(status);
    open_streams(link);
    return WEFT_OK;
}

/* It begins with the first byte that comes: whoever says nothing costs nothing. */
static weft_status shake_tls(wefti_wire *link) {
    if (!link->connection) WEFT_TRY(wefti_tls_begin(link->tls, link->fd, &link->connection));
    weft_status status = wefti_tls_shake(link->connection);
    if (status != WEFT_OK) return status;
    link->phase = link->scheduler ? WEFTI_WIRE_PROVE : WEFTI_WIRE_GREET;
    if (link->scheduler) WEFT_TRY(greet(link));
    return WEFT_OK;
}

static weft_status answer_greeting(wefti_wire *link) {
    const unsigned char *data = link->hand;
    bool tls = data[4] == 'T' && !link->connection;
    WEFT_REQUIRE(memcmp(data, "weft", 4) == 0 && (tls || data[4] == 'G'), WEFT_E_ARG,
                 "this is not a weft scheduler");
    WEFT_REQUIRE(is_magic(data, tls ? 'T' : 'G'), WEFT_E_ARG,
                 "the scheduler speaks version %d, this process version %d: they are of different "
                 "releases of weft",
                 (int)data[7], WEFTI_WIRE_VERSION);
    WEFT_REQUIRE(!tls || link->tls, WEFT_E_ARG,
                 "the scheduler wants TLS, and here WEFT_TLS is not 1: all of a job must have the "
                 "same (weft launch --tls)");
    WEFT_REQUIRE(tls || link->connection || !link->tls, WEFT_E_ARG,
                 "the scheduler does without TLS, and here WEFT_TLS is 1: all of a job must have "
                 "the same (weft launch --tls)");
    if (tls) {
        link->phase = WEFTI_WIRE_TLS;
        link->hand_used = 0;
        return shake_tls(link);
    }
    memcpy(link->nonces.scheduler, data + WEFTI_WIRE_MAGIC, WEFTI_NONCE_BYTES);
    WEFT_TRY(wefti_random_bytes(link->nonces.member, WEFTI_NONCE_BYTES));
    unsigned char answer[WEFTI_WIRE_ANSWER];
    magic(answer, 'A');
    memcpy(answer + WEFTI_WIRE_MAGIC, link->nonces.member, WEFTI_NONCE_BYTES);
    wefti_prove(link->secret, WEFTI_PROOF_MEMBER, &link->nonces,
                answer + WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES);
    WEFT_TRY(send_whole(link, answer, sizeof answer));
    link->phase = WEFTI_WIRE_PROVE;
    link->hand_used = 0;
    return WEFT_OK;
}

static weft_status check_welcome(wefti_wire *link) {
    const unsigned char *data = link->hand;
    unsigned char proof[WEFTI_DIGEST_BYTES];
    WEFT_REQUIRE(!is_magic(data, 'N'), WEFT_E_ARG,
                 "the scheduler knows another secret than this process");
    wefti_prove(link->secret, WEFTI_PROOF_SCHEDULER, &link->nonces, proof);
    WEFT_REQUIRE(is_magic(data, 'W') &&
                     wefti_equal_secretly(proof, data + WEFTI_WIRE_MAGIC, sizeof proof),
                 WEFT_E_ARG, "what answers in place of the scheduler does not know the secret");
    open_streams(link);
    return WEFT_OK;
}

static weft_status shake(wefti_wire *link) {
    if (link->phase == WEFTI_WIRE_TLS) return shake_tls(link);
    size_t wanted = link->phase == WEFTI_WIRE_GREET ? WEFTI_WIRE_GREETING
                    : link->scheduler               ? WEFTI_WIRE_ANSWER
                                                    : WEFTI_WIRE_WELCOME;
    size_t got;
    weft_status status = take(link, link->hand + link->hand_used, wanted - link->hand_used, &got);
    if (status != WEFT_OK) return status;
    link->hand_used += got;
    if (link->hand_used < wanted) return WEFT_OK;
    return link->phase == WEFTI_WIRE_GREET ? answer_greeting(link)
           : link->scheduler               ? check_answer(link)
                                           : check_welcome(link);
}

/* Makes room for `more` bytes after the used ones. */
static weft_status make_room(unsigned char **data, size_t used, size_t *room, size_t more) {
    if (*room - used >= more) return WEFT_OK;
    size_t wanted = *room ? 2 * *room : 4096;
    while (wanted - used < more) wanted *= 2;
    unsigned char *grown = wefti_realloc(*data, wanted);
    WEFT_REQUIRE(grown, WEFT_E_NOMEM, "no memory for a connection's %zu bytes", wanted);
    *data = grown;
    *room = wanted;
    return WEFT_OK;
}

/* Large messages are few: their memory is not kept. */
static void shrink(unsigned char **data, size_t *room) {
    enum { KEPT = 65536 };
    if (*room <= KEPT) return;
    wefti_free(*data);
    *data = NULL;
    *room = 0;
}

weft_status wefti_wire_fill(wefti_wire *link) {
    if (link->phase != WEFTI_WIRE_OPEN) return shake(link);
    if (link->in_at > 0) {
        memmove(link->in, link->in + link->in_at, link->in_used - link->in_at);
        link->in_used -= link->in_at;
        link->in_at = 0;
    }
    if (link->in_used == 0) shrink(&link->in, &link->in_room);
    /* Memory grows with received bytes, not with announced ones. */
    size_t got, room = link->connection ? WEFTI_TLS_RECORD : 2048;
    WEFT_TRY(make_room(&link->in, link->in_used, &link->in_room, room));
    weft_status status = take(link, link->in + link->in_used, link->in_room - link->in_used, &got);
    if (status == WEFT_OK) link->in_used += got;
    return status;
}

weft_status wefti_wire_next(wefti_wire *link, wefti_frame *out) {
    if (link->phase != WEFTI_WIRE_OPEN) return WEFT_PENDING;
    size_t taken;
    weft_status status =
        wefti_frame_parse(&link->receives, link->in ? link->in + link->in_at : NULL,
                          link->in_used - link->in_at, out, &taken);
    if (status == WEFT_OK) link->in_at += taken;
    return status;
}

bool wefti_wire_wants_to_write(const wefti_wire *link) {
    return link->out_at < link->out_used;
}

/* All of data[*at..end). */
static weft_status give_all(wefti_wire *link, const unsigned char *data, size_t *at, size_t end) {
    while (*at < end) {
        size_t sent;
        weft_status status = give(link, data + *at, end - *at, &sent);
        if (status != WEFT_OK) return status;
        *at += sent;
    }
    return WEFT_OK;
}

weft_status wefti_wire_flush(wefti_wire *link) {
    weft_status status;
    for (; link->insert_at < link->inserts; link->insert_at++) {
        wefti_insert *i = &link->insert[link->insert_at];
        status = give_all(link, link->out, &link->out_at, i->before);
        if (status == WEFT_OK)
            status = give_all(link, wefti_shared_body_data(i->block), &i->sent, i->block->bytes);
        if (status != WEFT_OK) return status;
        wefti_shared_body_release(i->block);
    }
    status = give_all(link, link->out, &link->out_at, link->out_used);
    if (status != WEFT_OK) return status;
    link->out_at = link->out_used = 0;
    link->insert_at = link->inserts = 0;
    shrink(&link->out, &link->out_room);
    return WEFT_OK;
}

weft_status wefti_wire_send(wefti_wire *link, wefti_frame_kind kind, const void *head,
                            size_t head_bytes, const void *rest, size_t rest_bytes) {
    WEFT_REQUIRE(link->phase == WEFTI_WIRE_OPEN, WEFT_E_BUG, "a frame before the handshake");
    size_t bytes = head_bytes + rest_bytes;
    WEFT_TRY(make_room(&link->out, link->out_used, &link->out_room, bytes + WEFTI_FRAME_EXTRA));
    unsigned char *frame = link->out + link->out_used;
    if (head_bytes) memcpy(frame + WEFTI_FRAME_HEADER, head, head_bytes);
    if (rest_bytes) memcpy(frame + WEFTI_FRAME_HEADER + head_bytes, rest, rest_bytes);
    wefti_frame_seal(&link->sends, kind, bytes, frame);
    link->out_used += bytes + WEFTI_FRAME_EXTRA;
    weft_status status = wefti_wire_flush(link);
    return status == WEFT_PENDING ? WEFT_OK : status;
}

/* The frame is sealed around the body where that lies, for one connection after the other; header
 * and signature go with this connection's own output. */
weft_status wefti_wire_send_shared(wefti_wire *link, wefti_frame_kind kind,
                                   wefti_shared_body *block) {
    WEFT_REQUIRE(link->phase == WEFTI_WIRE_OPEN, WEFT_E_BUG, "a frame before the handshake");
    WEFT_TRY(make_room(&link->out, link->out_used, &link->out_room, WEFTI_FRAME_EXTRA));
    WEFT_TRY(WEFT_GROW(link->insert, link->inserts, link->insert_room));
    wefti_frame_seal(&link->sends, kind, block->bytes, block->frame);
    memcpy(link->out + link->out_used, block->frame, WEFTI_FRAME_HEADER);
    link->out_used += WEFTI_FRAME_HEADER;
    link->insert[link->inserts++] = (wefti_insert){.block = block, .before = link->out_used};
    block->holders++;
    memcpy(link->out + link->out_used, wefti_shared_body_data(block) + block->bytes,
           WEFTI_FRAME_MAC);
    link->out_used += WEFTI_FRAME_MAC;
    weft_status status = wefti_wire_flush(link);
    return status == WEFT_PENDING ? WEFT_OK : status;
}
