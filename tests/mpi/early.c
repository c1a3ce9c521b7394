/* One rank of an MPI program ends before the others, in one of the ways that programs have. The
 * others wait for it in a collective, and name it long before the time limit.
 *
 * early finalize|exit|leave|void|before */
#include "mpi_check.h"

#include <unistd.h>

#include "weft/weft.h"

enum { EARLY = 1 };

static void end_early(const char *how, weft_world *world) {
    if (strcmp(how, "leave") == 0) weft_world_leave(world);
    if (strcmp(how, "exit") != 0) MPI_Finalize();
    exit(0);
}

/* Rank EARLY makes no world. The others hear of it when the time to join is up; they end the job.
 */
static void end_before(void) {
    weft_world *world;
    if (world_rank == EARLY) end_early("finalize", NULL);
    const weft_status status = weft_world_from_mpi(MPI_COMM_WORLD, NULL, &world);
    printf("rank %d: %d: %s\n", world_rank, (int)status, weft_error_message());
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, status == WEFT_E_TIMEOUT ? 5 : 6);
}

int main(int argc, char **argv) {
    weft_world *world;
    weft_world_options options = {.struct_bytes = sizeof(weft_world_options),
                                  .heartbeat_seconds = 3};
    const char *how = argc > 1 ? argv[1] : "finalize";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (strcmp(how, "before") == 0) end_before();
    GOOD(weft_world_from_mpi(MPI_COMM_WORLD, &options, &world));
    float x = 1;
    GOOD(weft_all_reduce(world, NULL, &x, &x, 1, WEFT_F32, WEFT_REDUCE_SUM));
    if (strcmp(how, "void") == 0) { /* a world that was left is nobody's any more */
        weft_world_leave(world);
        MPI_Finalize();
        return 0;
    }
    MPI_Barrier(MPI_COMM_WORLD); /* all have ended that call */
    if (world_rank == EARLY) end_early(how, world);
    const weft_status status = weft_all_reduce(world, NULL, &x, &x, 1, WEFT_F32, WEFT_REDUCE_SUM);
    printf("rank %d: %d: %s\n", world_rank, (int)status, weft_error_message());
    fflush(stdout);
    weft_world_leave(world);
    MPI_Finalize();
    return status < 0 ? 0 : 3;
}
