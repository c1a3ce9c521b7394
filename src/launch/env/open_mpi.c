/* Open MPI. Source: mpirun(1). */
#include "launch/env/reader.h"

static weft_status read(wefti_env_reader *r) {
    return wefti_read_numbered(r, WEFTI_START_OPEN_MPI);
}

const wefti_launcher_source wefti_source_open_mpi = {
    .names = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
    .read = read};
