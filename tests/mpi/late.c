/* Under mpirun, linked to no MPI: rank 0 computes longer than the other ranks' time limits for
 * leaving, and still ends well.
 *
 * late SECONDS */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weft/weft.h"

int main(int argc, char **argv) {
    weft_world *world;
    float one = 1, all = 0;
    if (argc != 2 || weft_world_join(NULL, &world) < 0 ||
        weft_all_reduce(world, NULL, &one, &all, 1, WEFT_F32, WEFT_REDUCE_SUM) < 0)
        return fprintf(stderr, "%s\n", weft_error_message()), 1;
    if (weft_world_rank(world) == 0) {
        sleep((unsigned)atoi(argv[1]));
        printf("rank 0 of %g is done\n", (double)all);
    }
    if (weft_world_close(world) < 0) return fprintf(stderr, "%s\n", weft_error_message()), 1;
    return 0;
}
