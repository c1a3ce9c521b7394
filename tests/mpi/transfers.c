/* Random transfers of every kind, through rounds of MPI's messages, against the threads of one
 * process: the same to the bit, sums of any numbers included. Every process computes both.
 *
 *     transfers single|multiple [SEED] */
#include "mpi_check.h"

#include "comm/comm_cases.h"

enum { CASES = 12, TURNS = 3 };

typedef struct sides { /* of one case: of all members with threads; then of this rank alone */
    void *source[MOST_RANKS], *destination[MOST_RANKS];
} sides;
typedef struct reference {
    shared_case *cases;
    sides *values; /* [CASES * TURNS] */
} reference;

static int64_t bytes_of(const shared_case *c, const wefti_region *box) {
    return wefti_region_elems(box, c->t.rank) * (int64_t)weft_dtype_bytes(c->t.dtype);
}

/* Any numbers that the type can have but infinities: sums depend on their order. */
static void *numbers_of(const shared_case *c, uint64_t seed, int32_t member, int turn) {
    int64_t n = wefti_region_elems(&c->have[member], c->t.rank);
    size_t bytes = (size_t)bytes_of(c, &c->have[member]);
    void *array = calloc(bytes + 16, 1);
    if (!array) abort();
    for (int64_t i = 0; i < n; i++) {
        double v = wefti_philox_normal(seed + (uint64_t)turn, (uint64_t)member, (uint64_t)i);
        bool whole = c->t.dtype >= WEFT_I32;
        wefti_store(c->t.dtype, array, i, whole ? (double)((int)(v * 10) & 1) : v * 3);
    }
    return array;
}

static void run_reference(world_test *w, int32_t rank) {
    reference *r = w->context;
    for (int i = 0; i < CASES; i++) {
        shared_case *c = &r->cases[i];
        int32_t m = member_of(c, rank);
        wefti_endpoint *e;
        if (m < 0) continue;
        wefti_transfer t = for_member(c, m);
        if (!good(w, rank, w->comm[rank]->engine->bind(w->comm[rank], &t, &e), "bind")) return;
        for (int turn = 0; turn < TURNS; turn++) {
            sides *s = &r->values[i * TURNS + turn];
            bool has = bytes_of(c, &c->have[m]) > 0, wants = bytes_of(c, &c->want[m]) > 0;
            if (!good(
                    w, rank,
                    wefti_comm_run(e, has ? s->source[m] : NULL, wants ? s->destination[m] : NULL),
                    "run"))
                return;
        }
        w->comm[rank]->engine->unbind(e);
    }
}

/* All cases at once, posts as deep as may be, waits in the order of the posts. */
static void run_mpi(wefti_comm *comm, reference *r, sides *mine) {
    wefti_endpoint *e[CASES] = {0};
    for (int i = 0; i < CASES; i++) {
        int32_t m = member_of(&r->cases[i], comm->rank);
        if (m < 0) continue;
        wefti_transfer t = for_member(&r->cases[i], m);
        GOOD(comm->engine->bind(comm, &t, &e[i]));
    }
    for (int k = 0; k < CASES * (TURNS + 1); k++) {
        int i = k % CASES, turn = k / CASES;
        int32_t m = member_of(&r->cases[i], comm->rank);
        if (m < 0) continue;
        if (turn < TURNS) {
            const shared_case *c = &r->cases[i];
            sides *s = &mine[i * TURNS + turn];
            s->destination[m] = calloc((size_t)bytes_of(c, &c->want[m]) + 16, 1);
            CHECK(s->destination[m]);
            bool has = bytes_of(c, &c->have[m]) > 0, wants = bytes_of(c, &c->want[m]) > 0;
            GOOD(wefti_comm_post(e[i], has ? r->values[i * TURNS + turn].source[m] : NULL,
                                 wants ? s->destination[m] : NULL));
        }
        if (turn > 0) GOOD(wefti_comm_wait(e[i]));
    }
    for (int i = 0; i < CASES; i++) wefti_comm_unbind(e[i]);
}

static void compare(reference *r, sides *mine, int32_t rank) {
    for (int k = 0; k < CASES * TURNS; k++) {
        const shared_case *c = &r->cases[k / TURNS];
        int32_t m = member_of(c, rank);
        if (m < 0) continue;
        size_t bytes = (size_t)bytes_of(c, &c->want[m]);
        if (memcmp(mine[k].destination[m], r->values[k].destination[m], bytes + 16) != 0) {
            fprintf(stderr, "%s, %s of %s, %d members, turn %d: not what threads make of it\n",
                    c->name, wefti_transfer_kind_text(c->t.kind), weft_dtype_text(c->t.dtype),
                    (int)c->t.members, k % TURNS);
            CHECK(!"equal bits");
        }
        free(mine[k].destination[m]);
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static shared_case cases[CASES];
    static sides values[CASES * TURNS], mine[CASES * TURNS];
    reference r = {cases, values};
    weft_transport transport;
    wefti_comm *comm;
    CHECK(world_size <= MOST_RANKS);
    GOOD(weft_mpi_transport(MPI_COMM_WORLD, weft_error_raise, &transport));
    GOOD(wefti_comm_p2p(&transport, NULL, &comm));
    numbers draws = {seed, 0};
    for (int script = 0; script < 8; script++) {
        for (int i = 0; i < CASES; i++) {
            choose_case(&cases[i], world_size, i, &draws);
            for (int k = 0; k < TURNS; k++)
                for (int32_t m = 0; m < cases[i].t.members; m++) {
                    sides *s = &values[i * TURNS + k];
                    s->source[m] = numbers_of(&cases[i], seed + (uint64_t)(i + 100 * script), m, k);
                    s->destination[m] =
                        calloc((size_t)bytes_of(&cases[i], &cases[i].want[m]) + 16, 1);
                }
        }
        world_test w;
        CHECK(world_begin(&w, world_size, 0, &r));
        run_all(&w, run_reference);
        if (w.failures) fprintf(stderr, "threads: %s\n", w.message);
        CHECK(w.failures == 0);
        world_end(&w);
        run_mpi(comm, &r, mine);
        compare(&r, mine, world_rank);
        for (int k = 0; k < CASES * TURNS; k++)
            for (int32_t m = 0; m < cases[k / TURNS].t.members; m++) {
                free(values[k].source[m]);
                free(values[k].destination[m]);
            }
    }
    wefti_comm_destroy(comm);
    mpi_still_works(MPI_COMM_WORLD);
    if (world_rank == 0) printf("%d ranks: transfers are those of threads\n", world_size);
    MPI_Finalize();
    return 0;
}
