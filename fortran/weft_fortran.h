/* What the C side of the Fortran module `weft` shares: texts and arrays as Fortran 2018 hands them
 * over, by descriptors, which know size, type and place of what they describe. */
#ifndef WEFT_FORTRAN_H
#define WEFT_FORTRAN_H

#include <ISO_Fortran_binding.h>
#include <stdbool.h>
#include <weft/weft.h>

/* Without trailing blanks; 0 for one that was left out. */
static inline size_t weft_fortran_length(const CFI_cdesc_t *text) {
    size_t length = text ? text->elem_len : 0;
    while (length > 0 && ((const char *)text->base_addr)[length - 1] == ' ') length--;
    return length;
}
/* `to` has room for the length and a NUL. */
static inline void weft_fortran_copy(char *to, const CFI_cdesc_t *text) {
    size_t length = weft_fortran_length(text);
    for (size_t i = 0; i < length; i++) to[i] = ((const char *)text->base_addr)[i];
    to[length] = '\0';
}
/* Declares the C string `name` with the text of a Fortran one. */
#define WEFT_FORTRAN_TEXT(name, text)                                                              \
    char name[weft_fortran_length(text) + 1];                                                      \
    weft_fortran_copy(name, text)

/* -1: unknown, an array of assumed size. */
static inline int64_t weft_fortran_elements(const CFI_cdesc_t *array) {
    int64_t elements = 1;
    for (int d = 0; d < array->rank; d++) {
        if (array->dim[d].extent < 0) return -1;
        elements *= array->dim[d].extent;
    }
    return elements;
}
/* What its elements are; false for types that weft does not have, as 16-bit integers, which may
 * stand for any. */
static inline bool weft_fortran_dtype(const CFI_cdesc_t *array, weft_dtype *out) {
    static const struct {
        CFI_type_t type;
        weft_dtype dtype;
    } known[] = {{CFI_type_float, WEFT_F32},
                 {CFI_type_double, WEFT_F64},
                 {CFI_type_int32_t, WEFT_I32},
                 {CFI_type_int64_t, WEFT_I64},
                 {CFI_type_Bool, WEFT_BOOL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (array->type == known[i].type) return *out = known[i].dtype, true;
    return false;
}
static inline bool weft_fortran_contiguous(const CFI_cdesc_t *array) {
    return array->rank == 0 || CFI_is_contiguous(array);
}

/* An array that is a list: integers, values. */
static inline int weft_fortran_count(const CFI_cdesc_t *list) {
    return list ? (int)list->dim[0].extent : 0;
}
static inline void *weft_fortran_item(const CFI_cdesc_t *list, int index) {
    return (char *)list->base_addr + index * list->dim[0].sm;
}
static inline int weft_fortran_int(const CFI_cdesc_t *list, int index) {
    return *(const int *)weft_fortran_item(list, index);
}

#endif
