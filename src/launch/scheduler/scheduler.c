/* The scheduler's thread and its public face: see scheduler.h. */
#include "launch/scheduler/scheduler.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "launch/scheduler/state.h"

/* All members are looked at once in TICK_LEAST_MS, however many events come. */
enum { EVENTS = 64, TICK_MS = 50, TICK_LEAST_MS = 5, SCHEDULER_MS = 1000000 };

static char listener_mark, alarm_mark; /* what epoll returns for these two */

/* Without free descriptors the scheduler accepts no new connections, and members continue. Pending
 * connections would wake it all the time, so it asks for them again a moment later. */
static void listen_to_new(wefti_scheduler *s, bool on, int64_t now) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data.ptr = &listener_mark};
    if (epoll_ctl(s->poller, EPOLL_CTL_MOD, s->listener, &event) == 0) s->deaf_ns = on ? 0 : now;
}

static void tick(wefti_scheduler *s, int64_t now) {
    if (s->deaf_ns && now - s->deaf_ns > TICK_MS * (int64_t)SCHEDULER_MS)
        listen_to_new(s, true, now);
    wefti_client_expire(s, now);
    wefti_standby_check(s, now);
    if (s->state == WEFTI_SCHEDULER_FORMING) wefti_scheduler_check_forming(s, now);
    wefti_scheduler_check_word(s, now);
    if (s->state == WEFTI_SCHEDULER_RUNNING) wefti_scheduler_check_allgather(s, now);
    if (s->state == WEFTI_SCHEDULER_RUNNING) wefti_scheduler_check_ranks(s, now);
    if (s->state == WEFTI_SCHEDULER_RUNNING) wefti_mend_check(s, now);
    wefti_keep_check(s);
}

/* Until told to stop, and then until all is written, for a second at most. */
static bool done(const wefti_scheduler *s, int64_t stop_ns, int64_t now) {
    if (!s->stopping) return false;
    if (stop_ns && now - stop_ns > 1000 * (int64_t)SCHEDULER_MS) return true;
    for (int64_t i = 0; i < s->client_count; i++)
        if (wefti_wire_wants_to_write(&s->clients[i]->link)) return false;
    return true;
}

static void handle(wefti_scheduler *s, const struct epoll_event *event) {
    if (event->data.ptr == &alarm_mark) {
        uint64_t count;
        if (read(s->alarm, &count, sizeof count) < 0) return; /* nothing to count: also fine */
    } else if (event->data.ptr == &listener_mark) {
        if (wefti_scheduler_accept(s) < 0) listen_to_new(s, false, wefti_now_ns());
    } else {
        wefti_client *client = event->data.ptr;
        if (client->state < WEFTI_CLIENT_GONE && event->events & EPOLLOUT)
            wefti_client_write(s, client);
        if (client->state < WEFTI_CLIENT_GONE && event->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            wefti_client_read(s, client);
    }
}

static void *run(void *context) {
    wefti_scheduler *s = context;
    struct epoll_event events[EVENTS];
    int64_t stop_ns = 0, tick_ns = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        int64_t now = wefti_now_ns();
        if (s->stopping && !stop_ns) stop_ns = now;
        if (done(s, stop_ns, now)) break;
        pthread_mutex_unlock(&s->lock);
        int count = epoll_wait(s->poller, events, EVENTS, TICK_MS);
        pthread_mutex_lock(&s->lock);
        now = wefti_now_ns();
        if (tick_ns && now - tick_ns > 1000 * (int64_t)SCHEDULER_MS) s->paused_ns = now;
        for (int i = 0; i < count; i++) handle(s, &events[i]);
        now = wefti_now_ns();
        if (now - tick_ns >= TICK_LEAST_MS * (int64_t)SCHEDULER_MS) {
            tick(s, now);
            tick_ns = now;
        }
        wefti_scheduler_sweep(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static weft_status start_thread(wefti_scheduler *s) {
    int error = wefti_thread_start(&s->thread, run, s);
    WEFT_REQUIRE(error == 0, WEFT_E_NOMEM, "no thread for the scheduler: %s", strerror(error));
    return WEFT_OK;
}

static weft_status open_all(wefti_scheduler *s) {
    const wefti_scheduler_options *o = &s->options;
    if (o->tls) WEFT_TRY(wefti_tls_create(true, &o->secret, &s->tls));
    bool awaits = o->awaits_name || o->awaits_interface;
    wefti_patience patience = {.seconds = awaits ? (double)s->join_ns * 1e-9 : 0,
                               .of_name = o->awaits_name,
                               .waits = o->waits,
                               .context = o->context};
    WEFT_TRY(wefti_listen_at(o->address, o->port, &patience, &s->address, &s->listener));
    wefti_address_text(&s->address, true, s->address_text);
    s->poller = epoll_create1(EPOLL_CLOEXEC);
    s->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event listens = {.events = EPOLLIN, .data.ptr = &listener_mark};
    struct epoll_event wakes = {.events = EPOLLIN, .data.ptr = &alarm_mark};
    WEFT_REQUIRE(s->poller >= 0 && s->alarm >= 0 &&
                     epoll_ctl(s->poller, EPOLL_CTL_ADD, s->listener, &listens) == 0 &&
                     epoll_ctl(s->poller, EPOLL_CTL_ADD, s->alarm, &wakes) == 0,
                 WEFT_E_IO, "no event queue for the scheduler: %s", strerror(errno));
    WEFT_TRY(start_thread(s));
    return WEFT_OK;
}

static void release(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_wire_close(&s->clients[i]->link);
        wefti_free(s->clients[i]->next);
        wefti_identity_free(&s->clients[i]->identity);
        wefti_free(s->clients[i]);
    }
    wefti_tls_destroy(s->tls);
    for (int32_t i = 0; i < s->taken; i++) wefti_slot_clear(&s->slots[i]);
    if (s->listener >= 0) close(s->listener);
    if (s->poller >= 0) close(s->poller);
    if (s->alarm >= 0) close(s->alarm);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    explicit_bzero(&s->options.secret, sizeof s->options.secret);
    wefti_shared_body_release(s->answer);
    wefti_scheduler_forget_parted(s);
    wefti_mend_end(s);
    wefti_gather_end(s);
    wefti_free(s->clients);
    wefti_free(s->slots);
    wefti_free(s->live.ranks);
    wefti_seats_free(s);
    wefti_again_free(s);
    wefti_alike_end(s);
    wefti_restart_budget_free(&s->restarts);
    wefti_free(s->keeper);
    wefti_free(s->earlier);
    wefti_free(s->told);
    wefti_free(s->called);
    wefti_free(s->job);
    wefti_free(s);
}

/* One connection for each member, besides what the process has open. */
static weft_status require_files(int32_t size) {
    enum { BESIDES = 16 };
    struct rlimit limit;
    WEFT_REQUIRE(
        getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
            limit.rlim_cur >= (rlim_t)size + BESIDES,
        WEFT_E_ARG,
        "the scheduler of %d members needs some %lld open files, and no more than %llu are "
        "allowed: raise the limit (ulimit -n)",
        (int)size, (long long)size + BESIDES, (unsigned long long)limit.rlim_cur);
    return WEFT_OK;
}

weft_status wefti_scheduler_start(const wefti_scheduler_options *options, wefti_scheduler **out) {
    WEFT_REQUIRE(options->size > 0 && options->size <= WEFTI_RANKS_MAX, WEFT_E_ARG,
                 "a job has 1 to %d members, not %d", WEFTI_RANKS_MAX, (int)options->size);
    WEFT_REQUIRE(options->port >= 0 && options->port < 65536, WEFT_E_ARG, "port %d", options->port);
    WEFT_TRY(require_files(options->size));
    wefti_scheduler *s;
    WEFT_NEW(s, wefti_scheduler);
    s->options = *options;
    s->generation = options->generation;
    s->numbers = s->room = options->size;
    s->listener = s->poller = s->alarm = -1;
    s->start_ns = wefti_now_ns();
    s->restarts = wefti_restart_budget_of(options->restarts, options->restart_window_seconds);
    s->join_ns = wefti_ns_of_seconds(options->join_seconds, 600);
    s->heartbeat_ns = s->live.silence_ns = wefti_ns_of_seconds(options->heartbeat_seconds, 10);
    s->live.wait_ns = wefti_ns_of_seconds(options->wait_seconds, WEFTI_WAIT_SECONDS);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&s->lock, NULL);
    s->slots = wefti_calloc((size_t)options->size, sizeof *s->slots);
    s->live.ranks = wefti_calloc((size_t)options->size, sizeof *s->live.ranks);
    s->keeper = wefti_calloc((size_t)options->size, sizeof *s->keeper);
    s->earlier = wefti_calloc((size_t)options->size, sizeof *s->earlier);
    s->told = wefti_calloc((size_t)options->size, sizeof *s->told);
    s->called = wefti_calloc((size_t)options->size, sizeof *s->called);
    s->job = wefti_strdup(options->job ? options->job : "");
    weft_status status =
        s->slots && s->live.ranks && s->keeper && s->earlier && s->told && s->called && s->job
            ? wefti_seats_create(s)
            : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a scheduler of %d members",
                         (int)options->size);
    if (status >= 0) status = wefti_again_create(s);
    if (status >= 0) status = wefti_alike_begin(s);
    if (status >= 0) status = open_all(s);
    if (status < 0)
        release(s);
    else
        *out = s;
    return status;
}

const char *wefti_scheduler_address(const wefti_scheduler *s) {
    return s->address_text;
}
int wefti_scheduler_port(const wefti_scheduler *s) {
    const char *colon = strrchr(s->address_text, ':');
    int port = 0;
    for (const char *p = colon ? colon + 1 : ""; *p; p++) port = 10 * port + (*p - '0');
    return port;
}

static struct timespec after(double seconds) {
    int64_t at = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    return (struct timespec){.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
}

wefti_scheduler_state wefti_scheduler_wait(wefti_scheduler *s, wefti_scheduler_state state,
                                           double seconds) {
    struct timespec until = after(seconds);
    pthread_mutex_lock(&s->lock);
    while (s->state == state && seconds > 0)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until) == ETIMEDOUT) break;
    wefti_scheduler_state is = s->state;
    pthread_mutex_unlock(&s->lock);
    return is;
}

static void ring(wefti_scheduler *s) {
    uint64_t one = 1;
    if (write(s->alarm, &one, sizeof one) < 0) return; /* full: it rings already */
}

void wefti_scheduler_fail(wefti_scheduler *s, weft_status status, int32_t failed,
                          const char *message) {
    pthread_mutex_lock(&s->lock);
    const int32_t slot = s->ranked ? wefti_slot_of_process(s, failed) : -1;
    bool has_said_why = slot >= 0 && s->live.ranks[slot].gave_up;
    if (!has_said_why) wefti_scheduler_abort(s, status, failed, message);
    pthread_mutex_unlock(&s->lock);
    ring(s);
}

void wefti_scheduler_ended(wefti_scheduler *s, const wefti_end *end) {
    pthread_mutex_lock(&s->lock);
    wefti_scheduler_rank_ended(s, end);
    pthread_mutex_unlock(&s->lock);
    ring(s);
}

wefti_again wefti_scheduler_awaits(wefti_scheduler *s, const wefti_end *end, int starts) {
    pthread_mutex_lock(&s->lock);
    const wefti_again awaits = wefti_keep_answer(s, end, starts);
    wefti_doubt_ended(s, end->rank, starts);
    pthread_mutex_unlock(&s->lock);
    ring(s);
    return awaits;
}

void wefti_scheduler_note(wefti_scheduler *s, const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)vsnprintf(s->notes.text[s->notes.count++ % WEFTI_NOTES], sizeof s->notes.text[0], format,
                    list);
    va_end(list);
}

char *wefti_scheduler_noted(wefti_scheduler *s, int64_t *count) {
    wefti_text text = {0};
    pthread_mutex_lock(&s->lock);
    const int64_t missed = s->notes.count - WEFTI_NOTES - *count;
    if (missed > 0) {
        *count += missed;
        wefti_text_add(&text, "(%lld notes before this one are lost) ", (long long)missed);
    }
    const bool any = *count < s->notes.count;
    if (any) wefti_text_add(&text, "%s", s->notes.text[(*count)++ % WEFTI_NOTES]);
    pthread_mutex_unlock(&s->lock);
    return any ? wefti_text_take(&text) : NULL;
}

char *wefti_scheduler_again_text(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    char *text = wefti_strdup(s->again.text);
    pthread_mutex_unlock(&s->lock);
    return text;
}

bool wefti_scheduler_goes_on(wefti_scheduler *s, const wefti_end *end) {
    pthread_mutex_lock(&s->lock);
    bool goes_on = wefti_mend_goes_on(s, end);
    wefti_doubt_ended(s, end->rank, 1);
    pthread_mutex_unlock(&s->lock);
    ring(s);
    return goes_on;
}

int wefti_scheduler_deaths(wefti_scheduler *s, int32_t rank) {
    pthread_mutex_lock(&s->lock);
    const int32_t slot = wefti_slot_of_process(s, rank);
    int deaths = s->ranked ? 0 : wefti_again_deaths(s, rank);
    if (s->ranked && slot >= 0) deaths = wefti_slot_killable(&s->slots[slot]);
    if (s->ranked && slot < 0 && !wefti_mend_was_dismissed(s, rank)) deaths = INT_MAX;
    pthread_mutex_unlock(&s->lock);
    return deaths;
}

bool wefti_scheduler_is_unlike(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool unlike = s->unlike;
    pthread_mutex_unlock(&s->lock);
    return unlike;
}

bool wefti_scheduler_is_over(wefti_scheduler *s, wefti_end *out) {
    pthread_mutex_lock(&s->lock);
    bool is_over = s->is_over;
    if (is_over) *out = s->end;
    pthread_mutex_unlock(&s->lock);
    return is_over;
}

bool wefti_scheduler_is_watched(wefti_scheduler *s, int32_t first, int32_t count) {
    bool watched = false;
    pthread_mutex_lock(&s->lock);
    for (int64_t i = 0; i < s->client_count; i++) {
        const wefti_client *c = s->clients[i];
        if (c->watch.first < 0) continue; /* a spare */
        watched =
            watched || (c->state < WEFTI_CLIENT_GONE && c->watch.count > 0 &&
                        c->watch.first < first + count && first < c->watch.first + c->watch.count);
    }
    pthread_mutex_unlock(&s->lock);
    return watched;
}

bool wefti_scheduler_has_left(wefti_scheduler *s, int32_t rank) {
    pthread_mutex_lock(&s->lock);
    const int32_t slot = s->ranked ? wefti_slot_of_process(s, rank) : -1;
    bool left = slot >= 0 && s->live.ranks[slot].state == WEFTI_LIFE_PARTED;
    pthread_mutex_unlock(&s->lock);
    return left;
}

bool wefti_scheduler_has_told(wefti_scheduler *s, int32_t first, int32_t count) {
    bool told = false;
    pthread_mutex_lock(&s->lock);
    for (int32_t r = first; r < first + count && r < s->options.size; r++)
        told = told || s->told[r];
    pthread_mutex_unlock(&s->lock);
    return told;
}

bool wefti_scheduler_was_watched(wefti_scheduler *s, int32_t first, int32_t count) {
    bool called = false;
    pthread_mutex_lock(&s->lock);
    for (int32_t r = first; r < first + count && r < s->options.size; r++)
        called = called || s->called[r];
    pthread_mutex_unlock(&s->lock);
    return called;
}

double wefti_scheduler_seconds_to_come(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool missing = !s->ranked && s->taken < s->options.size;
    double left = (double)(s->start_ns + s->join_ns - wefti_now_ns()) * 1e-9;
    pthread_mutex_unlock(&s->lock);
    return missing && left > 0 ? left : 0;
}

weft_status wefti_scheduler_check(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    weft_status status = s->reason.status;
    if (status < 0) (void)wefti_adopt_of(status, s->reason.failed, s->reason.text);
    pthread_mutex_unlock(&s->lock);
    return status;
}

char *wefti_scheduler_abort_reason(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    char *text = wefti_strdup(s->reason.text);
    pthread_mutex_unlock(&s->lock);
    return text;
}

void wefti_scheduler_stop(wefti_scheduler *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    if (s->state == WEFTI_SCHEDULER_RUNNING) wefti_scheduler_goodbye(s);
    for (int64_t i = 0; i < s->client_count && !wefti_standby_hands_over(s); i++)
        if (s->clients[i]->watch.count > 0)
            wefti_client_send(s, s->clients[i], WEFTI_FRAME_GOODBYE, NULL, 0);
    s->stopping = true;
    pthread_mutex_unlock(&s->lock);
    ring(s);
    pthread_join(s->thread, NULL);
    release(s);
}

weft_status wefti_scheduler_serve(const wefti_scheduler_options *options,
                                  void (*announce)(void *context, const char *address),
                                  void *context, char **out_table) {
    wefti_scheduler *s;
    WEFT_TRY(wefti_scheduler_start(options, &s));
    if (announce) announce(context, wefti_scheduler_address(s));
    wefti_scheduler_state state = WEFTI_SCHEDULER_FORMING;
    while (state == WEFTI_SCHEDULER_FORMING || state == WEFTI_SCHEDULER_RUNNING)
        state = wefti_scheduler_wait(s, state, 3600);
    weft_status status = wefti_scheduler_check(s);
    if (out_table) *out_table = wefti_scheduler_table(s);
    wefti_scheduler_stop(s);
    return status;
}
