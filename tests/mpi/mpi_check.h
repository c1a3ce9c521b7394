/* What the programs of these tests share: complaints that name the rank and end the job. */
#ifndef MPI_CHECK_H
#define MPI_CHECK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft/mpi.h"

static int world_rank, world_size;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d of %d: %s:%d: %s is not so (%s)\n", world_rank, world_size,   \
                    __FILE__, __LINE__, #condition, weft_error_message());                         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)
#define GOOD(call) CHECK((call) >= 0)

/* The level of threads that is asked for: "single" or "multiple", the first argument. */
static inline void begin(int argc, char **argv) {
    int wanted =
        argc > 1 && strcmp(argv[1], "multiple") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    int given;
    MPI_Init_thread(&argc, &argv, wanted, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (given < wanted && world_rank == 0) printf("this MPI gives level %d of threads\n", given);
}

/* What every signal does in this process. */
typedef struct dispositions {
    struct sigaction action[65];
} dispositions;
static inline void look_at_signals(dispositions *out) {
    memset(out, 0, sizeof *out);
    for (int s = 1; s < 65; s++) (void)sigaction(s, NULL, &out->action[s]);
}
static inline bool same_signals(const dispositions *a, const dispositions *b) {
    for (int s = 1; s < 65; s++)
        if (a->action[s].sa_handler != b->action[s].sa_handler ||
            a->action[s].sa_flags != b->action[s].sa_flags)
            return false;
    return true;
}

static inline uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t x = (a + 1) * 0x9E3779B97F4A7C15u ^ (b + 7) * 0xC2B2AE3D27D4EB4Fu;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

/* MPI does what it did before: a sum and a message on the program's own communicator. */
static inline void mpi_still_works(MPI_Comm comm) {
    int rank, size, sum = 0, from = -1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    CHECK(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
    CHECK(sum == size * (size - 1) / 2);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &from, 1, MPI_INT,
                 (rank + size - 1) % size, 0, comm, MPI_STATUS_IGNORE);
    CHECK(from == (rank + size - 1) % size);
}

#endif
