/* MPICH and other launchers that speak PMI. Source: the PMI of hydra. */
#include "launch/env/reader.h"

static weft_status read(wefti_env_reader *r) {
    WEFT_TRY(wefti_reader_number(r, "PMI_FD", 0, 1 << 30, &r->out->pmi_fd));
    return wefti_read_numbered(r, WEFTI_START_MPICH);
}

const wefti_launcher_source wefti_source_mpich = {
    .names = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL},
    .read = read};
