/* The messages of weft/mpi.h, through its table directly: every size around the limits of short
 * messages and pieces; tags that differ in few bits; any order of posting and testing; refused
 * arguments; cancelled requests. The program's own MPI does not notice them.
 *
 * transport single|multiple [SEED] */
#include "mpi_check.h"

enum { MESSAGES = 300, LONGEST = 60000 };

typedef struct message {
    int from, to;
    uint64_t tag;
    size_t bytes, room; /* room: of the receive */
    unsigned char *data;
    void *request;
    bool posted, done;
} message;

static uint64_t seed = 1, drawn;
static int64_t pick(int64_t low, int64_t high) {
    return low + (int64_t)(mixed(seed, drawn++) % (uint64_t)(high - low + 1));
}

static size_t choose_bytes(void) {
    static const size_t borders[] = {0, 1, WEFTI_MPI_SHORT, WEFTI_MPI_SHORT + 1, 20000, 40000};
    if (pick(0, 2) == 0) return borders[pick(0, 5)];
    return (size_t)(pick(0, 3) ? pick(0, 600) : pick(0, LONGEST));
}

/* The same on all ranks. Tags differ only above what MPI could tell apart, or collide in it. */
static void choose_messages(message *m, int size) {
    static const uint64_t tags[] = {0, 1, 1ull << 15, 1ull << 31, 1ull << 32, UINT64_MAX, 77};
    for (int i = 0; i < MESSAGES; i++) {
        memset(&m[i], 0, sizeof m[i]);
        m[i].from = (int)pick(0, size - 1);
        m[i].to = (int)pick(0, size - 1);
        m[i].tag = tags[pick(0, 6)];
        m[i].bytes = choose_bytes();
        m[i].room = m[i].bytes + (pick(0, 3) ? 0 : (size_t)pick(1, 5000));
    }
}

static void post_one(const weft_transport *t, message *m, int number, bool sends) {
    size_t room = sends ? m->bytes : m->room;
    m->data = malloc(room + 16);
    m->request = aligned_alloc(16, (t->request_bytes + 15) / 16 * 16);
    CHECK(m->data && m->request);
    memset(m->data, 0xEE, room + 16);
    for (size_t i = 0; sends && i < m->bytes; i++)
        m->data[i] = (unsigned char)mixed((uint64_t)number, i);
    if (sends)
        GOOD(t->send(t->context, m->to, m->tag, m->bytes ? m->data : NULL, m->bytes, m->request));
    else
        GOOD(t->receive(t->context, m->from, m->tag, m->data, m->room, m->request));
    m->posted = true;
}

static void finish_one(message *m, int number, bool sends, size_t arrived) {
    CHECK(arrived == m->bytes);
    for (size_t i = 0; !sends && i < m->bytes; i++)
        CHECK(m->data[i] == (unsigned char)mixed((uint64_t)number, i));
    for (size_t i = m->bytes; !sends && i < m->room + 16; i++) CHECK(m->data[i] == 0xEE);
    free(m->data);
    free(m->request);
    m->done = true;
}

/* Sends are a first list, receives a second; each in the order of the messages, interleaved at
 * random; tested at random. */
static void random_messages(const weft_transport *t, uint64_t round) {
    static message list[2][MESSAGES];
    int next[2] = {0, 0};
    seed += round;
    drawn = 0;
    choose_messages(list[0], t->size);
    memcpy(list[1], list[0], sizeof list[0]);
    drawn += 1000 * (uint64_t)(t->rank + 1); /* from here on each its own */
    for (int left = 2 * MESSAGES; left > 0;) {
        int side = (int)pick(0, 1), i = next[side];
        if (i < MESSAGES && pick(0, 2) > 0) {
            bool mine = (side ? list[1][i].to : list[0][i].from) == t->rank;
            if (mine)
                post_one(t, &list[side][i], i, side == 0);
            else
                left--;
            next[side]++;
            continue;
        }
        i = (int)pick(0, MESSAGES - 1);
        for (int k = 0; k < 20; k++, i = (i + 1) % MESSAGES) {
            message *m = &list[side][i];
            size_t arrived = 12345;
            if (!m->posted || m->done) continue;
            weft_status status = t->test(t->context, m->request, &arrived);
            GOOD(status);
            if (status != WEFT_OK) continue;
            finish_one(m, i, side == 0, arrived);
            left--;
        }
        (void)sched_yield();
    }
}

static void wait_for(const weft_transport *t, void *request) {
    weft_status status;
    while ((status = t->test(t->context, request, NULL)) == WEFT_PENDING) (void)sched_yield();
    GOOD(status);
}

static void blocks_for_all(const weft_transport *t) {
    for (size_t bytes = 0; bytes < 3000; bytes = 3 * bytes + 1) {
        unsigned char mine[3000], *all = calloc((size_t)t->size, bytes + 1);
        for (size_t i = 0; i < bytes; i++) mine[i] = (unsigned char)mixed((uint64_t)t->rank, i);
        GOOD(t->exchange(t->context, mine, bytes, all));
        for (int r = 0; r < t->size; r++)
            for (size_t i = 0; i < bytes; i++)
                CHECK(all[(size_t)r * bytes + i] == (unsigned char)mixed((uint64_t)r, i));
        free(all);
    }
}

/* A piece above 2 GiB, for machines that have room for it twice. */
static void huge_message(const weft_transport *t) {
    size_t bytes = ((size_t)2 << 30) + 12345;
    if (!getenv("WEFT_TEST_LARGE") || t->rank > 1 || t->size < 2) return;
    unsigned char *data = calloc(bytes, 1), request[1024] __attribute__((aligned(16)));
    CHECK(data && t->request_bytes <= sizeof request);
    for (size_t i = 0; t->rank == 0 && i < bytes; i += 4099)
        data[i] = (unsigned char)(i / 4099 + 1);
    if (t->rank == 0)
        GOOD(t->send(t->context, 1, 5, data, bytes, request));
    else
        GOOD(t->receive(t->context, 0, 5, data, bytes, request));
    wait_for(t, request);
    for (size_t i = 0; i < bytes; i += 4099) CHECK(data[i] == (unsigned char)(i / 4099 + 1));
    for (size_t i = 1; i < bytes; i += 4099) CHECK(data[i] == 0);
    if (t->rank == 1) printf("%zu bytes in one message\n", bytes);
    free(data);
}

/* To itself, so that one rank suffices. */
static void misuse(const weft_transport *t) {
    static unsigned char from[20000], into[20000];
    unsigned char request[4][1024] __attribute__((aligned(16)));
    CHECK(t->send(t->context, t->size, 0, from, 1, request[0]) == WEFT_E_ARG);
    CHECK(strstr(weft_error_message(), "rank "));
    CHECK(t->receive(t->context, -1, 0, into, 1, request[0]) == WEFT_E_ARG);
    for (size_t bytes = 11; bytes < 20000; bytes += 19000) { /* a letter, and a long one */
        weft_status status = WEFT_PENDING;
        GOOD(t->receive(t->context, t->rank, 9, into, 10, request[0]));
        GOOD(t->send(t->context, t->rank, 9, from, bytes, request[1]));
        while (status == WEFT_PENDING) status = t->test(t->context, request[0], NULL);
        CHECK(status == WEFT_E_MISMATCH);
        CHECK(strstr(weft_error_message(), bytes == 11 ? "sent 11 bytes" : "sent 19011 bytes"));
        t->cancel(t->context, request[1]);
    }
}

/* After this the others are not waited for, and what comes too late is ignored. */
static void given_up(const weft_transport *t) {
    static unsigned char from[50000], into[50000];
    unsigned char request[4][1024] __attribute__((aligned(16)));
    int peer = (t->rank + 1) % t->size;
    for (int i = 0; i < 3; i++) {
        GOOD(t->receive(t->context, peer, 100, into, sizeof into, request[0])); /* never sent */
        GOOD(t->send(t->context, peer, 101, from, sizeof from, request[1]));    /* never taken */
        GOOD(t->send(t->context, peer, 102, from, 100, request[2]));
        (void)t->test(t->context, request[0], NULL);
        t->cancel(t->context, request[0]);
        t->cancel(t->context, request[1]);
        t->cancel(t->context, request[2]);
        t->cancel(t->context, request[2]); /* nothing to give up is legal */
    }
    /* The others go on as before. */
    memset(into, 0, sizeof into);
    memset(from, t->rank + 1, sizeof from);
    GOOD(t->receive(t->context, (t->rank + t->size - 1) % t->size, 103, into, sizeof into,
                    request[0]));
    GOOD(t->send(t->context, peer, 103, from, sizeof from, request[1]));
    wait_for(t, request[0]);
    wait_for(t, request[1]);
    CHECK(into[49999] == (t->rank + t->size - 1) % t->size + 1);
}

static void refusals(void) {
    weft_transport t;
    CHECK(weft_mpi_transport(MPI_COMM_NULL, weft_error_raise, &t) == WEFT_E_ARG);
    CHECK(strstr(weft_error_message(), "MPI_COMM_NULL"));
    if (world_size < 2) return;
    MPI_Comm half, between;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - world_rank % 2, 3, &between);
    CHECK(weft_mpi_transport(between, weft_error_raise, &t) == WEFT_E_ARG);
    CHECK(strstr(weft_error_message(), "intercommunicator"));
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
}

/* Messages of the program with the tags that we use, posted before and taken after. */
typedef struct own_messages {
    MPI_Request request[4];
    int sent[2], got[2];
} own_messages;
static void own_begin(own_messages *o) {
    int next = (world_rank + 1) % world_size, last = (world_rank + world_size - 1) % world_size;
    for (int tag = 0; tag < 2; tag++) {
        o->sent[tag] = 1000 * tag + world_rank;
        MPI_Irecv(&o->got[tag], 1, MPI_INT, last, tag, MPI_COMM_WORLD, &o->request[tag]);
        MPI_Isend(&o->sent[tag], 1, MPI_INT, next, tag, MPI_COMM_WORLD, &o->request[2 + tag]);
    }
}
static void own_end(own_messages *o) {
    for (int i = 0; i < 4; i++) MPI_Wait(&o->request[i], MPI_STATUS_IGNORE);
    for (int tag = 0; tag < 2; tag++)
        CHECK(o->got[tag] == 1000 * tag + (world_rank + world_size - 1) % world_size);
}

int main(int argc, char **argv) {
    weft_transport early;
    CHECK(weft_mpi_transport(MPI_COMM_WORLD, weft_error_raise, &early) == WEFT_E_ARG);
    CHECK(strstr(weft_error_message(), "MPI"));
    begin(argc, argv);
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    dispositions before, after;
    MPI_Errhandler handler, still;
    own_messages own;
    MPI_Comm part;
    look_at_signals(&before);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    refusals();
    own_begin(&own);
    for (int turn = 0; turn < 3; turn++) { /* all of them, a split one, and then torn */
        weft_transport t;
        MPI_Comm_split(MPI_COMM_WORLD, turn == 1 ? world_rank % 2 : 0, -world_rank, &part);
        GOOD(weft_mpi_transport(part, weft_error_raise, &t));
        MPI_Comm_free(&part); /* we have our own */
        int level;
        MPI_Query_thread(&level);
        CHECK(t.any_thread == (level == MPI_THREAD_MULTIPLE));
        blocks_for_all(&t);
        for (uint64_t round = 0; round < 3; round++) random_messages(&t, round);
        if (turn == 0) huge_message(&t);
        if (turn == 2) misuse(&t), given_up(&t);
        t.close(t.context);
        mpi_still_works(MPI_COMM_WORLD);
    }
    own_end(&own);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &still);
    CHECK(still == handler);
    look_at_signals(&after);
    CHECK(same_signals(&before, &after));
    if (world_rank == 0) printf("%d ranks: messages are as they should be\n", world_size);
    MPI_Finalize();
    return 0;
}
