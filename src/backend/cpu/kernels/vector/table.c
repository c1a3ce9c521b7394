/* The table of this build: see kernels.h. */
#include "backend/cpu/kernels/vector/table.h"

#define TEXT_(name) #name
#define TABLE_TEXT(name) TEXT_(name)
#define TABLE_(isa) wefti_kernels_##isa
#define TABLE(isa) TABLE_(isa)

extern const wefti_kernels TABLE(KERNEL_ISA);
const wefti_kernels TABLE(KERNEL_ISA) = {
#define X(name, args) .name = KERNEL(name),
#include "backend/cpu/kernels/kernels.def"
#undef X
    .isa = TABLE_TEXT(KERNEL_ISA),
};
