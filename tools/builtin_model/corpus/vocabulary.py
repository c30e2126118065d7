"""Plain words: what spelling, repeating and first letters are practised on."""

from __future__ import annotations

import random

_LIST = """
ant ape bear bee bird bull butterfly camel cat chicken cow crab crow deer dog dolphin donkey dove duck eagle elephant fish fly fox frog
giraffe goat goose hamster hare hen horse kangaroo kitten koala lamb leopard lion lizard monkey mouse mule octopus owl ox panda parrot
penguin pig pigeon pony puppy rabbit rat raven rooster seal shark sheep snail snake spider squirrel swan tiger turkey turtle whale wolf
worm zebra apple apricot avocado banana bean berry bread broccoli butter cabbage cake candy carrot cheese cherry chocolate coconut
coffee cookie corn cream cucumber egg fig flour garlic grape honey jam juice kiwi leek lemon lettuce lime mango meat melon milk mushroom
nut oil olive onion orange pasta peach peanut pear peas pepper pie pineapple pizza plum potato pumpkin rice salad salt sandwich sauce
soup spinach strawberry sugar tea toast tomato vanilla vegetable water wheat wine yogurt arm back beard blood body bone brain cheek
chest chin ear elbow eye face finger foot hair hand head heart heel hip knee leg lip mouth nail neck nose shoulder skin stomach thumb
toe tongue tooth bag ball basket bath bed bell belt bench bike blanket boat book boot bottle bowl box bridge broom brush bucket bus
button cable camera candle cap car card carpet chain chair clock cloth coat coin comb computer cup curtain desk dish doll door dress
drum engine fan fence flag floor fork garden gate gift glass glove gun guitar hammer hat helmet house iron jacket jar jeans jewel kettle
key kitchen kite knife ladder lamp laptop letter light lock machine map mask match mat mirror money mug napkin needle net newspaper
notebook oven page paint pan paper park pen pencil phone photo piano picture pillow pipe plane plate pocket pot purse puzzle radio ring
robot roof room rope ruler sail scarf school scissors shelf ship shirt shoe shop skirt soap sock sofa spoon stamp stick stone stove
street string suit suitcase sword table tape telephone television tent ticket tie tool towel tower town toy train tray truck trumpet
umbrella vase violin wall watch wheel whistle window wire wood wool zipper air autumn beach cloud coast day desert dust earth field fire
flower fog forest grass ground hill ice island jungle lake land leaf lightning moon morning mountain mud night ocean path plant planet
pond rain rainbow river road rock rose sand sea season sky snow soil space spring star storm summer sun thunder tree valley volcano wave
weather wind winter world actor artist aunt baby baker boy brother captain child cook cousin dad dancer daughter dentist doctor driver
family farmer father friend girl grandmother grandfather guard hero hunter husband king lady man mother neighbour nurse painter parent
person pilot pirate player poet police prince princess queen sailor sister soldier son student teacher thief twin uncle waiter wife
witch woman wizard writer answer beauty birthday circle city class colour corner country dance danger dream edge end energy fact fear
feast fun game group health hobby holiday home hope hour idea job joke joy language laugh law lesson library life line list love luck
lunch magic market memory mind minute mistake month music name nature news noise number office order pain party peace people piece place
plan point power present price problem question race reason rest rule science secret sentence shape sign silence sleep smile song sound
sport square story surprise test thing thought time touch trick trip trouble truth turn village voice walk war way week wish word work
year zero angry big black blue brave bright broken brown busy calm cheap clean clear clever cold cool crazy dark deep dirty dry easy
empty fast fat fine fresh full funny gentle good gray great green grey happy hard heavy high hot huge hungry kind large late lazy little
long loud lucky new nice old open pink poor pretty proud purple quick quiet ready red rich right round sad safe sharp short shy silly
simple slow small smooth soft sour strange strong sweet tall thick thin tiny tired true ugly warm weak wet white wide wild wise wrong
yellow young ask begin believe bite blow break bring build burn buy call carry catch change choose climb close come count cross cry cut
dig draw drink drive drop eat fall feed feel fight find finish float follow forget give go grow guess hear help hide hit hold hug hurry
jump keep kick kiss know learn leave lift listen live look lose make meet move need nod paddle pay pick play pour pull push put reach
read ride rise run say search see sell send shake share shine shout show sing sit smell speak spell spend stand start stay steal stop
study swim take talk teach tell think throw travel try use visit wait wake want wash wear whisper win wonder write yawn above after
again always away before behind below between down early enough every here inside later left maybe near never now often once outside
over quite seldom soon still there today together tomorrow tonight under very well yesterday hello goodbye please thank sorry welcome
yes no monday tuesday wednesday thursday friday saturday sunday january february march april may june july august september october
november december one two three four five six seven eight nine ten eleven twelve twenty hundred thousand million France Germany Italy
Spain London Paris Berlin Rome Europe Africa America Asia Peter Anna node core socket thread server model token cache prefix batch
kernel tensor weight processor keyboard screen software program network internet request system bandwidth numa linux python data file
adventure airport alphabet animal beautiful bicycle breakfast building castle cathedral ceiling century champion chimney cinema concert
crocodile crystal difficult dinosaur dragon elevator encyclopedia envelope factory favourite festival fountain furniture gorilla harbour
hospital hotel important interesting lantern lighthouse magazine magnet medicine microphone museum mystery necklace orchestra oxygen
palace parachute pharmacy pyramid restaurant rocket satellite sculpture shadow skeleton stadium statue station submarine sunflower
sunshine supermarket telescope temple theatre tornado treasure triangle tunnel unicorn university vacation vehicle wardrobe waterfall
wonderful xylophone yacht
"""

WORDS = tuple(_LIST.split())
_ONSETS = (
    *"b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sc sh sl sm sn sp st str t th tr v w wh y z".split(),
    "",
)
_VOWELS = tuple("a e i o u ai ea ee ie oa oo ou ue ay ow".split())
_CODAS = ("", "", *"b ck d f g k l ll m mp n nd ng nk nt p r rd rk rn rt s ss st t tch x le er ing ed y".split())


def word(rng: random.Random, made_up: float = 0.3) -> str:
    """A word from the list or, with probability `made_up`, one made of syllables, so that spelling is learned for pieces and not only by heart."""
    if rng.random() >= made_up:
        return rng.choice(WORDS)
    syllables = rng.choice((1, 1, 2, 2, 3))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if rng.random() < 0.7 else "")
        for _ in range(syllables)
    )
