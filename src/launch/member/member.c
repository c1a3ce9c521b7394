/* The calls of a member: member.h. A call leaves its request for the member's thread, which
 * carries it out. */
#include "launch/member/member.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "launch/host_identity.h"
#include "launch/member/state.h"
#include "launch/socket.h"

static const int64_t second_ns = 1000000000;

static void ring(wefti_member *m) {
    uint64_t one = 1;
    if (write(m->alarm, &one, sizeof one) < 0) return; /* full: it rings already */
}

/* False: the time is up. */
static bool wait_until(wefti_member *m, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / second_ns, .tv_nsec = until_ns % second_ns};
    return pthread_cond_timedwait(&m->changed, &m->lock, &until) != ETIMEDOUT;
}

static void release(wefti_member *m) {
    wefti_wire_close(&m->link);
    wefti_tls_destroy(m->tls);
    if (m->alarm >= 0) close(m->alarm);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    explicit_bzero(&m->secret, sizeof m->secret);
    wefti_free(m->last.data);
    wefti_free(m->now.data);
    wefti_free(m->giving_up);
    wefti_free(m->host);
    wefti_free(m->scheduler);
    wefti_free(m->interface);
    wefti_free(m);
}

static void end(wefti_member *m) {
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_mutex_unlock(&m->lock);
    ring(m);
    pthread_join(m->thread, NULL);
    release(m);
}

static weft_status copy_name(char out[WEFTI_NAME_MAX + 1], const char *name, const char *what) {
    if (!name) name = "";
    size_t n = strlen(name);
    WEFT_REQUIRE(n <= WEFTI_NAME_MAX, WEFT_E_ARG, "the %s has %zu characters; %d are the most",
                 what, n, WEFTI_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        WEFT_REQUIRE((unsigned char)name[i] >= 0x20 && name[i] != 0x7f, WEFT_E_ARG,
                     "the %s has a character that cannot be printed", what);
    memcpy(out, name, n + 1);
    return WEFT_OK;
}

static weft_status fill_in(wefti_member *m, const wefti_member_options *o) {
    m->join.rank = o->rank < 0 ? -1 : o->rank;
    m->join.size = o->size <= 0 ? -1 : o->size;
    m->join.pid = (int64_t)getpid();
    WEFT_TRY(copy_name(m->join.job, o->job, "name of the job"));
    WEFT_TRY(copy_name(m->join.node, o->node, "node id"));
    if (o->host && *o->host)
        WEFT_TRY(copy_name(m->join.host, o->host, "host's identity"));
    else
        WEFT_TRY(wefti_host_identity(m->join.host));
    m->scheduler = wefti_strdup(o->scheduler ? o->scheduler : "");
    m->interface = wefti_strdup(o->interface ? o->interface : "");
    WEFT_REQUIRE(m->scheduler && m->interface, WEFT_E_NOMEM, "no memory for a member");
    if (o->tls) WEFT_TRY(wefti_tls_create(false, &m->secret, &m->tls));
    m->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    WEFT_REQUIRE(m->alarm >= 0, WEFT_E_IO, "no event descriptor: %s", strerror(errno));
    return WEFT_OK;
}

static weft_status start(wefti_member *m) {
    int error = wefti_thread_start(&m->thread, wefti_member_run, m);
    WEFT_REQUIRE(error == 0, WEFT_E_NOMEM, "no thread for a member: %s", strerror(error));
    return WEFT_OK;
}

static weft_status reason(wefti_member *m) {
    WEFT_FAIL_OF(m->reason.failed, m->reason.status, "%s", m->reason.text);
}

/* Starts the thread. `end`: the end that it reports. `ranks`: the ranks for which it watches. Both
 * NULL: it joins. */
static weft_status begin(const wefti_member_options *options, const wefti_end *end,
                         const wefti_span *ranks, wefti_member **out) {
    wefti_member *m;
    WEFT_NEW(m, wefti_member);
    m->alarm = m->link.fd = -1;
    m->secret = options->secret;
    m->reports = end != NULL;
    m->looks = ranks != NULL;
    if (end) m->end = *end;
    if (ranks) m->ranks = *ranks;
    m->join_ns = wefti_ns_of_seconds(options->join_seconds, 600);
    m->leave_ns = wefti_ns_of_seconds(options->leave_seconds, 5);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&m->lock, NULL);
    weft_status status = fill_in(m, options);
    if (status >= 0) status = start(m);
    if (status < 0)
        release(m);
    else
        *out = m;
    return status;
}

weft_status wefti_member_join(const wefti_member_options *options, wefti_member **out) {
    wefti_member *m;
    weft_status status = WEFT_OK;
    WEFT_TRY(begin(options, NULL, NULL, &m));
    /* The thread keeps the time, and says when it is up. */
    pthread_mutex_lock(&m->lock);
    while (m->state == WEFTI_MEMBER_JOINING) pthread_cond_wait(&m->changed, &m->lock);
    if (m->state == WEFTI_MEMBER_FAILED) status = reason(m);
    pthread_mutex_unlock(&m->lock);
    if (status < 0)
        end(m);
    else
        *out = m;
    return status;
}

weft_status wefti_member_report(const wefti_member_options *options, const wefti_end *end,
                                wefti_member **out) {
    return begin(options, end, NULL, out);
}

weft_status wefti_member_look(const wefti_member_options *options, const wefti_span *ranks,
                              wefti_member **out) {
    return begin(options, NULL, ranks, out);
}

bool wefti_member_is_over(wefti_member *m, wefti_end *out) {
    pthread_mutex_lock(&m->lock);
    bool is_over = m->looks && m->is_over;
    if (is_over) *out = m->end;
    pthread_mutex_unlock(&m->lock);
    return is_over;
}

bool wefti_member_is_under_way(wefti_member *m) {
    pthread_mutex_lock(&m->lock);
    bool under_way = m->state == WEFTI_MEMBER_JOINING && !m->watches;
    pthread_mutex_unlock(&m->lock);
    return under_way;
}

bool wefti_member_has_reached(wefti_member *m) {
    pthread_mutex_lock(&m->lock);
    bool reached = m->watches || m->state == WEFTI_MEMBER_PARTED;
    pthread_mutex_unlock(&m->lock);
    return reached;
}

bool wefti_member_is_unlike(wefti_member *m, double seconds, wefti_abort_reason *out) {
    int64_t until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    pthread_mutex_lock(&m->lock);
    m->asks = true;
    ring(m);
    /* A scheduler that has gone said everything before, and a watcher that has given it up asks no
     * more. */
    while (m->watches && m->state != WEFTI_MEMBER_FAILED && !m->is_over &&
           (m->asks || m->unanswered > 0) && wefti_now_ns() < until)
        (void)wait_until(m, wefti_now_ns() + second_ns / 20);
    bool is_unlike = m->unlike.status < 0;
    if (is_unlike) *out = m->unlike;
    pthread_mutex_unlock(&m->lock);
    return is_unlike;
}

void wefti_member_report_end(wefti_member *m, double seconds, bool only_once) {
    int64_t until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    pthread_mutex_lock(&m->lock);
    while (m->state == WEFTI_MEMBER_JOINING && wefti_now_ns() < until &&
           !(only_once && m->trouble[0]))
        (void)wait_until(m, wefti_now_ns() + second_ns / 20);
    pthread_mutex_unlock(&m->lock);
    end(m);
}

int32_t wefti_member_rank(const wefti_member *m) {
    return m->placed.rank;
}
int32_t wefti_member_size(const wefti_member *m) {
    return m->placed.size;
}
uint64_t wefti_member_generation(const wefti_member *m) {
    return m->placed.generation;
}
const int32_t *wefti_member_hosts(const wefti_member *m) {
    return m->host;
}

weft_status wefti_member_interface(wefti_member *m, char out[WEFTI_INTERFACE_TEXT]) {
    pthread_mutex_lock(&m->lock);
    weft_status status = wefti_socket_interface(m->link.fd, out);
    pthread_mutex_unlock(&m->lock);
    return status;
}

static weft_status begin_swap(wefti_member *m, const void *entry, size_t bytes, void *entries) {
    WEFT_REQUIRE(bytes <= WEFTI_ENTRY_MAX, WEFT_E_ARG,
                 "an all-gather entry has %zu bytes; the most is %d", bytes, WEFTI_ENTRY_MAX);
    if (m->state == WEFTI_MEMBER_FAILED) return reason(m);
    WEFT_REQUIRE(m->state == WEFTI_MEMBER_IN && !m->leaving, WEFT_E_PEER,
                 "no all-gather through the scheduler: the job has ended");
    unsigned char *copy = wefti_alloc(bytes ? bytes : 1);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for an all-gather entry of %zu bytes", bytes);
    memcpy(copy, entry, bytes);
    wefti_free(m->last.data);
    m->last = m->now;
    m->now = (wefti_member_entry){.number = m->last.number + 1, .data = copy, .bytes = bytes};
    m->now_sent = false;
    m->entries = entries;
    return WEFT_OK;
}

static weft_status end_swap(wefti_member *m) {
    int64_t until = wefti_now_ns() + 2 * m->join_ns + 5 * second_ns;
    while (m->entries && m->state == WEFTI_MEMBER_IN)
        if (!wait_until(m, until)) break;
    if (!m->entries) return WEFT_OK;
    m->entries = NULL;
    if (m->state == WEFTI_MEMBER_FAILED) return reason(m);
    WEFT_FAIL(WEFT_E_TIMEOUT, "an all-gather through the scheduler did not finish in time");
}

weft_status wefti_member_allgather(wefti_member *m, const void *entry, size_t bytes,
                                   void *entries) {
    pthread_mutex_lock(&m->lock);
    weft_status status = begin_swap(m, entry, bytes, entries);
    if (status >= 0) {
        ring(m);
        status = end_swap(m);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static weft_status allgather(void *context, const void *entry, size_t bytes, void *entries) {
    return wefti_member_allgather(context, entry, bytes, entries);
}
wefti_exchange wefti_member_exchange(wefti_member *m) {
    return (wefti_exchange){.context = m, .allgather = allgather};
}

void wefti_member_watch(wefti_member *m, wefti_comm *comm, wefti_position *position) {
    pthread_mutex_lock(&m->lock);
    m->comm = comm;
    m->position = position;
    m->beat_ns = 0; /* say so at once */
    ring(m);
    bool failed = m->state == WEFTI_MEMBER_FAILED;
    pthread_mutex_unlock(&m->lock);
    if (failed && comm) wefti_comm_break(comm, m->reason.failed, m->reason.text);
}

weft_status wefti_member_check(wefti_member *m) {
    pthread_mutex_lock(&m->lock);
    weft_status status = m->state == WEFTI_MEMBER_FAILED ? reason(m) : WEFT_OK;
    pthread_mutex_unlock(&m->lock);
    return status;
}

static void fail(wefti_member *m, weft_status status, int failed, const char *message) {
    pthread_mutex_lock(&m->lock);
    if (m->state == WEFTI_MEMBER_IN && !m->giving_up) {
        m->giving_up = wefti_strdup(message);
        m->fail_status = status;
        m->failed = (int32_t)failed;
        ring(m);
        /* After a mismatch until the scheduler answers: this process may end at once, and its exit
         * code must not be the first that the launcher hears. */
        bool answer = status == WEFT_E_MISMATCH;
        int64_t until = wefti_now_ns() + second_ns;
        while (m->giving_up && (answer || !m->given_up) && m->state == WEFTI_MEMBER_IN)
            if (!wait_until(m, until)) break;
    }
    pthread_mutex_unlock(&m->lock);
}

void wefti_member_fail(wefti_member *m, int failed, const char *message) {
    fail(m, WEFT_E_PEER, failed, message);
}

void wefti_member_found_mismatch(wefti_member *m, const char *message) {
    fail(m, WEFT_E_MISMATCH, WEFT_RANK_NONE, message);
}

weft_status wefti_member_close(wefti_member *m, const wefti_call_records *records) {
    weft_status status = WEFT_OK;
    if (!m) return status;
    pthread_mutex_lock(&m->lock);
    m->records = records;
    m->leaving = true;
    ring(m);
    /* A peer that closes its connection without a LEAVE has died: wait a little longer for the
     * scheduler to say so. */
    int64_t until = wefti_now_ns() + (m->giving_up ? second_ns : m->leave_ns);
    while (m->state == WEFTI_MEMBER_IN &&
           wefti_now_ns() < until + (m->leave_sent ? 0 : 2 * second_ns))
        (void)wait_until(m, wefti_now_ns() + second_ns / 20);
    if (m->state == WEFTI_MEMBER_FAILED) status = reason(m);
    pthread_mutex_unlock(&m->lock);
    end(m);
    return status;
}
