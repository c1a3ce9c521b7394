/* Worlds on communicators of a program: two at a time on the halves of a split one, with ranks in
 * the communicator's order; collectives on the program's arrays; a rank that gives up; and an MPI
 * that works as before throughout.
 *
 * worlds single|multiple */
#include "mpi_check.h"

#include "weft/weft.h"

enum { COUNT = 3001 };

static float value(int rank, int i) {
    return (float)(mixed((uint64_t)rank, (uint64_t)i) % 20011) / 977 - 10;
}

static void collectives(weft_world *world) {
    int rank = weft_world_rank(world), size = weft_world_size(world);
    float *mine = malloc(COUNT * sizeof *mine), *all = malloc((size_t)size * COUNT * sizeof *all);
    int64_t least;
    CHECK(mine && all);
    for (int i = 0; i < COUNT; i++) mine[i] = value(rank, i);
    GOOD(weft_all_gather(world, NULL, mine, all, COUNT, WEFT_F32));
    for (int r = 0; r < size; r++)
        for (int i = 0; i < COUNT; i++) CHECK(all[r * COUNT + i] == value(r, i));
    GOOD(weft_all_reduce(world, NULL, mine, mine, COUNT, WEFT_F32, WEFT_REDUCE_SUM)); /* in place */
    for (int i = 0; i < COUNT; i++) {
        float sum = value(0, i);
        for (int r = 1; r < size; r++) sum += value(r, i);
        CHECK(mine[i] == sum);
    }
    least = 100 - rank;
    GOOD(weft_all_reduce(world, NULL, &least, &least, 1, WEFT_I64, WEFT_REDUCE_MIN));
    CHECK(least == 101 - size);
    GOOD(weft_broadcast(world, NULL, all, size > 1 ? COUNT : 1, WEFT_F32, size - 1));
    double token = 0;
    if (rank > 0) GOOD(weft_recv(world, NULL, &token, 1, WEFT_F64, rank - 1, 3));
    token += rank + 1;
    if (rank + 1 < size) GOOD(weft_send(world, NULL, &token, 1, WEFT_F64, rank + 1, 3));
    if (rank + 1 == size) CHECK(token == size * (size + 1) / 2);
    GOOD(weft_barrier(world, NULL));
    free(mine);
    free(all);
}

/* Those that are together, while other worlds and the program's own messages are under way. */
static void on_a_part(int color, int key) {
    weft_world *world;
    MPI_Comm part;
    MPI_Request own[2];
    int out = world_rank, in = -1, rank;
    MPI_Irecv(&in, 1, MPI_INT, (world_rank + 1) % world_size, 0, MPI_COMM_WORLD, &own[0]);
    MPI_Isend(&out, 1, MPI_INT, (world_rank + world_size - 1) % world_size, 0, MPI_COMM_WORLD,
              &own[1]);
    MPI_Comm_split(MPI_COMM_WORLD, color, key, &part);
    GOOD(weft_world_from_mpi(part, NULL, &world));
    MPI_Comm_rank(part, &rank);
    CHECK(weft_world_rank(world) == rank);
    collectives(world);
    mpi_still_works(part);
    weft_world_leave(world);
    mpi_still_works(part);
    MPI_Comm_free(&part);
    MPI_Wait(&own[0], MPI_STATUS_IGNORE);
    MPI_Wait(&own[1], MPI_STATUS_IGNORE);
    CHECK(in == (world_rank + 1) % world_size);
}

/* A call that has returned needs nothing more of this rank: it may wait in MPI for one that is
 * still in that call. Lengths around those that go with a letter, and with a header. */
static void in_turn_with_mpi(weft_world *world) {
    enum { MOST = 40000 };
    static const int lengths[] = {1, 3000, 3600, 3900, 5000, 8000, 8192, 8300, MOST};
    static unsigned char own[16 * MOST], got[16 * MOST], again[16 * MOST];
    CHECK(world_size <= 16);
    for (int k = 0; k < 9; k++) {
        int n = lengths[k], last = world_size - 1, right = (world_rank + 1) % world_size;
        int left = (world_rank + last) % world_size;
        for (int i = 0; i < n * world_size; i++)
            own[i] = (unsigned char)mixed((uint64_t)world_rank, (uint64_t)(i + n));
        GOOD(weft_scatter(world, NULL, own, got, n, WEFT_U8, 0));
        MPI_Scatter(own, n, MPI_BYTE, again, n, MPI_BYTE, 0, MPI_COMM_WORLD);
        CHECK(memcmp(got, again, (size_t)n) == 0);
        GOOD(weft_gather(world, NULL, own, got, n, WEFT_U8, last));
        MPI_Gather(own, n, MPI_BYTE, again, n, MPI_BYTE, last, MPI_COMM_WORLD);
        CHECK(world_rank != last || memcmp(got, again, (size_t)(n * world_size)) == 0);
        GOOD(weft_broadcast(world, NULL, got, n, WEFT_U8, last));
        MPI_Bcast(again, n, MPI_BYTE, last, MPI_COMM_WORLD);
        CHECK(memcmp(got, again, (size_t)n) == 0);
        if (world_size > 1 && world_rank % 2 == 0 && right != 0)
            GOOD(weft_send(world, NULL, own, n, WEFT_U8, right, 1));
        if (world_rank % 2 == 1) GOOD(weft_recv(world, NULL, got, n, WEFT_U8, left, 1));
        MPI_Sendrecv(own, MOST, MPI_BYTE, right, 5, again, MOST, MPI_BYTE, left, 5, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        CHECK(world_rank % 2 == 0 || memcmp(got, again, (size_t)n) == 0);
    }
}

/* The others hear why, and can go on without that world. */
static void one_gives_up(void) {
    weft_world *world;
    GOOD(weft_world_from_mpi(MPI_COMM_WORLD, NULL, &world));
    if (world_rank == world_size - 1) {
        weft_world_fail(world, "grid: hole at 7");
    } else {
        float x[64] = {0};
        weft_status status = WEFT_OK;
        for (int i = 0; i < 1000000 && status >= 0; i++)
            status = weft_all_reduce(world, NULL, x, x, 64, WEFT_F32, WEFT_REDUCE_SUM);
        CHECK(status == WEFT_E_PEER);
        CHECK(strstr(weft_error_message(), "grid: hole at 7"));
    }
    weft_world_leave(world);
    mpi_still_works(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    weft_world *world;
    CHECK(weft_world_from_mpi(MPI_COMM_WORLD, NULL, &world) == WEFT_E_ARG);
    begin(argc, argv);
    dispositions before, after;
    look_at_signals(&before);
    on_a_part(0, world_rank);
    on_a_part(world_rank % 2, -world_rank);
    on_a_part(world_rank, 0); /* all alone */
    weft_world_options options = WEFT_STRUCT(weft_world_options, .communicator = "mpi");
    GOOD(weft_world_from_mpi(MPI_COMM_WORLD, &options, &world));
    if (world_size > 1) CHECK(strcmp(weft_world_communicator(world), "mpi") == 0);
    collectives(world);
    in_turn_with_mpi(world);
    weft_world_leave(world);
    if (world_size > 1) one_gives_up();
    on_a_part(0, -world_rank);
    look_at_signals(&after);
    CHECK(same_signals(&before, &after));
    if (world_rank == 0) printf("%d ranks: worlds on parts of MPI's\n", world_size);
    MPI_Finalize();
    return 0;
}
