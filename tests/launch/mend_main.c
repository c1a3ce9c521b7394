/* A rank of a world that is mended: the smallest program that makes steps as a session does, with
 * numbers in place of tensors. Each step adds up the gradients of some samples, which follow from
 * the step's number and which the ranks divide; then all ranks commit it, and update. Each rank
 * holds the whole state.
 *
 *     weft-mend STEPS [FOLDER DEATHS]
 *
 * DEATHS is "RANK@POINT:COUNT:SIGNAL,...": that rank gets the signal when a process of it comes to
 * that point for that time; with signal 0 the process stays there until it is killed, and with 100
 * more the signal is for the process whose number is in FOLDER/scheduler. With 99 nobody dies: this
 * process resets its connections to other ranks, as a firewall does. Each entry happens once, after
 * those before it: FOLDER remembers them. Prints the digest of the state at the end, and how
 * many steps this process has begun. With MEND_ALONE no rank holds what another one has. With
 * MS_ROLE=MS_SCHED it is the scheduler. MEND_UNLIKE: this process never says that it can be mended.
 * MEND_LEAST: the world may go on with so many ranks. MEND_AWAIT=STEP:RANKS: before that step it
 * waits for so many, and FOLDER/awaits says so. */
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/world.h"
#include "weft/collective.h"
#include "weft/launch.h"

enum { NUMBERS = 1000, SAMPLES = 12, EXIT_AGAIN = 75, RESET = 99, OF_SCHEDULER = 100 };

static const char *folder = "", *deaths = "";
static const char *rank_text;

static int64_t state[NUMBERS], reduced[NUMBERS];
static int64_t step, begun;
static bool ready;
static int whole_rank, whole_size; /* in the world that was whole last */

/* --- deaths --- */

static void end_scheduler(int number) {
    char path[4096];
    int process = 0;
    (void)snprintf(path, sizeof path, "%s/scheduler", folder);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &process) != 1 || process <= 1) abort();
    (void)fclose(file);
    (void)kill(process, number);
}

static bool leads_to_scheduler(int fd) {
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    char port[16];
    const char *scheduler = getenv("WEFT_SCHEDULER");
    const char *colon = scheduler ? strrchr(scheduler, ':') : NULL;
    if (!colon || getpeername(fd, (struct sockaddr *)&at, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&at, bytes, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0)
        return true;
    return strcmp(port, colon + 1) == 0;
}

/* TCP sends a reset for a connection that is dissolved so. */
static void reset_connections(void) {
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    const long most = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < (most < 4096 ? (int)most : 4096); fd++)
        if (!leads_to_scheduler(fd)) (void)connect(fd, &none, sizeof none);
}

static void die_once(int entry, int number) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/death-%d", folder, entry - 1);
    if (entry > 0 && access(path, F_OK) != 0) return;
    (void)snprintf(path, sizeof path, "%s/death-%d", folder, entry);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return; /* it has happened */
    close(fd);
    if (number >= OF_SCHEDULER) {
        end_scheduler(number - OF_SCHEDULER);
        return;
    }
    if (number == RESET) {
        reset_connections();
        return;
    }
    if (number == 0)
        for (;;) (void)pause(); /* until somebody kills it */
    (void)kill(getpid(), number);
}

static void point(const char *name) {
    static struct {
        const char *name;
        int count;
    } passed[16];
    int at = 0, entry = 0;
    while (passed[at].name && strcmp(passed[at].name, name) != 0) at++;
    passed[at].name = name;
    passed[at].count++;
    for (const char *p = deaths; *p; entry++) {
        char rank[16], where[32];
        int count, number, length = 0;
        if (sscanf(p, "%15[^@]@%31[^:]:%d:%d%n", rank, where, &count, &number, &length) != 4)
            abort();
        if (!strcmp(rank, rank_text) && !strcmp(where, name) && count == passed[at].count)
            die_once(entry, number);
        p += length;
        if (*p == ',') p++;
    }
}

/* --- a step --- */

static void update(void) {
    for (int i = 0; i < NUMBERS; i++)
        state[i] = (int64_t)((uint64_t)state[i] * 6364136223846793005u + (uint64_t)reduced[i]);
    step++;
    ready = false;
}

/* Without a word of the scheduler, which may be dead meanwhile. */
static void await_ranks(weft_world *w) {
    const char *text = getenv("MEND_AWAIT");
    int64_t before;
    int ranks;
    if (!text || sscanf(text, "%" SCNd64 ":%d", &before, &ranks) != 2 || step != before) return;
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/awaits", folder);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) (void)close(fd);
    while (weft_world_size(w) < ranks && !wefti_world_is_halted(w)) (void)usleep(1000);
}

static weft_status make_step(weft_world *w) {
    int64_t gradient[NUMBERS] = {0}, one = 1, all = 0;
    await_ranks(w);
    begun++;
    point("step");
    for (int k = weft_world_rank(w); k < SAMPLES; k += weft_world_size(w)) {
        const uint64_t seed = (uint64_t)(step + 1) * 1000003u + (uint64_t)k;
        for (int i = 0; i < NUMBERS; i++)
            gradient[i] += (int64_t)((seed + (uint64_t)i) * 2862933555777941757u >> 20);
    }
    weft_status status =
        weft_all_reduce(w, NULL, gradient, reduced, NUMBERS, WEFT_I64, WEFT_REDUCE_SUM);
    if (status < 0) return status;
    ready = true;
    point("reduced");
    status = weft_all_reduce(w, NULL, &one, &all, 1, WEFT_I64, WEFT_REDUCE_SUM);
    if (status < 0) return status;
    point("committed");
    update();
    return WEFT_OK;
}

/* --- mending --- */

static weft_status give_states(weft_world *w, const wefti_mend *mend, bool *has) {
    const int me = weft_world_rank(w);
    weft_status status = WEFT_OK;
    int32_t first = 0; /* in another world all that have the state have all of it */
    while (first < mend->size - 1 && mend->source[first] != -1) first++;
    for (int r = 0; r < weft_world_size(w) && status >= 0; r++) {
        const int32_t from = mend->source[r] == -3 ? first : mend->source[r];
        if (from == me) status = weft_send(w, NULL, state, NUMBERS, WEFT_I64, r, 1);
        if (r != me || from < 0) continue;
        status = weft_recv(w, NULL, state, NUMBERS, WEFT_I64, from, 1);
        if (status < 0) return status;
        *has = true;
        step = mend->target;
    }
    return status;
}

static weft_status follow(weft_world *w, const wefti_mend *mend, bool *has) {
    if (mend->from_disk) {
        memset(state, 0, sizeof state);
        step = 0;
        *has = true;
    }
    if (ready && mend->target == step + 1) update();
    ready = false;
    point("mended");
    weft_status status = give_states(w, mend, has);
    wefti_world_forget(w);
    point("given");
    return status;
}

/* Until the world is whole. A newcomer knows its first mend already. */
static weft_status recover(weft_world *w, const wefti_mend *first) {
    int32_t others[64], count = 0;
    const bool is_new = first;
    bool has = !first;
    wefti_mend mend;
    if (first) mend = *first;
    for (int r = 0; r < whole_size; r++)
        if (r != whole_rank && !getenv("MEND_ALONE")) others[count++] = r;
    for (;; first = NULL) {
        const wefti_stand at = {.step = has ? step : -1,
                                .ready = has && ready,
                                .holds = others,
                                .holds_count = has ? count : 0};
        point("halted");
        weft_status status = first ? WEFT_OK : wefti_world_mend(w, &at, &mend);
        if (status < 0) return status;
        if (follow(w, &mend, &has) < 0) continue;
        point("taken");
        status = wefti_world_whole(w);
        point("whole");
        whole_rank = status == WEFT_OK ? mend.rank : whole_rank;
        whole_size = status == WEFT_OK ? mend.size : whole_size;
        if (mend.resized && is_new && status == WEFT_PENDING) has = false; /* it was not there */
        if (status != WEFT_PENDING) return status;
    }
}

static weft_status run(weft_world *w, int64_t steps) {
    const wefti_mend *first = wefti_world_newcomer(w);
    weft_status status = WEFT_OK;
    const char *least = getenv("MEND_LEAST");
    const wefti_elastic elastic = {.least = least ? atoi(least) : 0, .seconds = 60};
    whole_rank = weft_world_rank(w);
    whole_size = weft_world_size(w);
    if (!getenv("MEND_UNLIKE")) wefti_world_arm(w, &elastic);
    if (first) status = recover(w, first);
    while (status >= 0 && step < steps) {
        status = make_step(w);
        if (status < 0 && wefti_world_mends(w) && status != WEFT_E_MISMATCH)
            status = recover(w, NULL);
    }
    return status;
}

static uint64_t digest(void) {
    uint64_t all = 0;
    for (int i = 0; i < NUMBERS; i++) all = all * 1099511628211u + (uint64_t)state[i];
    return all;
}

static int end(weft_status status) {
    if (status >= 0) return 0;
    (void)fprintf(stderr, "%s\n", weft_error_message());
    return status == WEFT_E_LOST || status == WEFT_E_TIMEOUT ? EXIT_AGAIN : 1;
}

int main(int count, char **words) {
    weft_world *w;
    if (count < 2) return 2;
    if (count > 3) {
        folder = words[2];
        deaths = words[3];
    }
    rank_text = getenv("WEFT_RANK") ? getenv("WEFT_RANK") : getenv("SLURM_PROCID");
    if (!rank_text) rank_text = getenv("MS_NODE_ID");
    if (!rank_text) rank_text = "0";
    if (weft_launch_is_scheduler()) return end(weft_launch_serve(NULL, NULL, NULL));
    point("start");
    weft_status status = weft_world_join(NULL, &w);
    if (status < 0) return end(status);
    point("joined");
    status = run(w, strtoll(words[1], NULL, 10));
    if (status >= 0) {
        (void)printf("process %d digest %016" PRIx64 " begun %" PRId64 "\n", (int)getpid(),
                     digest(), begun);
        (void)fflush(stdout);
        status = weft_world_close(w);
        return end(status);
    }
    int code = end(status);
    weft_world_fail(w, NULL);
    status = weft_world_close(w); /* the scheduler may know that the job can be tried again */
    return status == WEFT_E_LOST || status == WEFT_E_TIMEOUT ? EXIT_AGAIN : code;
}
