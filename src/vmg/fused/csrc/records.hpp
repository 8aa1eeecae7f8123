// How a structure's fields are written down once: as members, and as the text by which Python knows that it packs the
// same ones. A list of fields is a macro FIELDS(INT, REAL, IN, OUT); INT(name) is a size or a flag, REAL(name) a number
// in double precision, IN(name) and OUT(name) arrays that are read and written.

#pragma once

#include "memory.hpp"

#define INT_MEMBER(name) Int name;
#define REAL_MEMBER(name) double name;
#define IN_MEMBER(name) const T* name;
#define OUT_MEMBER(name) T* name;
#define MEMBERS(FIELDS) FIELDS(INT_MEMBER, REAL_MEMBER, IN_MEMBER, OUT_MEMBER)

#define INT_TEXT(name) #name ":i64,"
#define REAL_TEXT(name) #name ":f64,"
#define ARRAY_TEXT(name) #name ":ptr,"
#define LAYOUT(FIELDS) FIELDS(INT_TEXT, REAL_TEXT, ARRAY_TEXT, ARRAY_TEXT)
